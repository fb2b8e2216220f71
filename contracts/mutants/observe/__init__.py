"""Training scripts that break what every healthy run keeps: the reference's small script with a few words changed."""

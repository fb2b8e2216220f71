"""What a launcher makes of an argv, and what a trainer reads back out of its own."""

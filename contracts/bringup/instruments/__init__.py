"""What is observed of a node: its packages, mounts, pip's plans and folders of runs."""

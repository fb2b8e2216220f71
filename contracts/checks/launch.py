"""The command of a launch: its words, its flags, and what the launcher makes of them."""

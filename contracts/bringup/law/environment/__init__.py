"""ENV: recipe → environment, and which of the shell's variables may reach the ranks."""

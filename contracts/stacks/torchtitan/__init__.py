"""torchtitan as it comes from the package index, asked in the interpreter in which it is installed."""

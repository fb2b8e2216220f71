"""torchtitan as released on the package index. It runs in the interpreter in which it is installed."""

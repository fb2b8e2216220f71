"""How the fork is asked for its mesh. This one asks as the shipped adapter does; yours reads what your fork builds."""

from contracts.stacks.torchtitan.topology import topology

__all__ = ["topology"]

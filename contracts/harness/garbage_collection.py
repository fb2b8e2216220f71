"""How often Python looks for garbage while contracts are judged."""

import gc

NEW_OBJECTS = 200_000


def collect_seldom() -> None:
    """Look for cycles after so many new objects, where Python's own limit is 700: in a mesh of 65 536 ranks, a dry run
    of 52 layers or a graph that is compiled there are few, and looking for them takes a fifth of the time."""
    gc.set_threshold(NEW_OBJECTS)

class Ours:
    """A stack that answers one question, and has a bug: it builds whole periods of a pattern and drops the rest."""

    name, version = "ours", "2026.11"
    offers = frozenset({"blocks"})  # the questions it answers; the rest are "not offered"
    layouts = frozenset()  # the parallel layouts it can build: none
    labels = {}  # per question: whether the answer comes from a shim or a table instead of the stack's own code

    def blocks(self, pattern, depth):
        family = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
        return tuple(family[letter] for letter in pattern * (depth // len(pattern)))

"""Its GPT, its DDP, its optimizer and its schedule of a step in a loop like that of its QuickStart, observed."""

from contracts.stacks.kit.traces import Script, observed


def _of(*words: str, ranks: int = 1, before: str = "") -> Script:
    return Script(words=("train_megatron.py", *words), ranks=ranks, options=("--on-cpu", "megatron"), before=before)


RUNS = {
    "judged": _of("--experts", "4", "--ep", "2", "--dropout", "0.1", "--evaluate", ranks=2),
    "one-rank": _of(),
    "spread": _of("--tp", "2", ranks=2),
    "whole": _of("--steps", "3", "--save", "{kept}"),
    "resumed": _of("--steps", "3", "--load", "{kept}", before="whole"),
    "plain": _of(),
    "recomputed": _of("--recompute"),
}


def trace(run: str = "judged") -> str:
    """A small GPT over random tokens: on two ranks DDP with EP 2, or TP 2."""
    return observed("Megatron-Core", RUNS, run)

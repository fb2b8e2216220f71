"""Its own train.py, observed."""

from contracts.stacks.kit.traces import Script, observed

CPU = ("--on-cpu", "torchtitan")


def _of(config: str, ranks: int = 1, options: tuple[str, ...] = (), before: str = "") -> Script:
    words = ("-m", "torchtitan.train", "--module", "train_torchtitan", "--config", config, "--dump_folder", "{kept}")
    return Script(words=words, ranks=ranks, options=(*CPU, *options), before=before)


RUNS = {
    "judged": _of("experts_on_two_ranks", 2),
    "one-rank": _of("one_rank", options=("--keep-weights",)),
    "spread": _of("two_ranks", 2, ("--weights-from", "{before}"), "one-rank"),
    "whole": _of("saved"),
    "resumed": _of("resumed", before="whole"),
    "plain": _of("one_rank"),
    "recomputed": _of("recomputed"),
}
"""If it is sharded it draws other weights, so that "spread" begins with those of one rank."""


def trace(run: str = "judged") -> str:
    """A small Qwen3-MoE on two ranks with EP and FSDP2, or a small Llama, over random tokens."""
    return observed("torchtitan", RUNS, run)

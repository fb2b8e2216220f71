"""Its own Trainer, observed."""

from contracts.stacks.kit.traces import Script, observed

SCRIPT = "train_transformers.py"
RUNS = {
    "judged": Script(
        words=(SCRIPT, "--model", "qwen3_moe", "--tied", "--evaluate", "--accumulate", "2", "--dropout", "0.1"), ranks=2
    ),
    "one-rank": Script(words=(SCRIPT,)),
    "spread": Script(words=(SCRIPT,), ranks=2),
    "whole": Script(words=(SCRIPT, "--dropout", "0.1", "--out", "{kept}")),
    "resumed": Script(words=(SCRIPT, "--dropout", "0.1", "--out", "{kept}", "--resume"), before="whole"),
    "plain": Script(words=(SCRIPT, "--dropout", "0.1")),
    "recomputed": Script(words=(SCRIPT, "--dropout", "0.1", "--recompute")),
}
"""Resumed is Llama, since the Trainer resumes Qwen3-MoE with other experts (docs/confirmed)."""


def trace(run: str = "judged") -> str:
    """A small Qwen3-MoE or Llama over random tokens: on two ranks DDP."""
    return observed("transformers", RUNS, run)

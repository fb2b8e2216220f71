"""`python -m contracts.observe --out DIR train.py …`: the same as `rankproof observe`, alone or under torchrun -m."""

from __future__ import annotations

from contracts.harness.commands.observe import observe

if __name__ == "__main__":
    observe(prog_name="python -m contracts.observe")

"""`python -m contracts.observe --out DIR train.py …`: the same as `rankproof observe`, alone or under torchrun -m."""

from __future__ import annotations

if __name__ == "__main__":
    from contracts.harness.commands.observe import observe  # the harness stands above this package

    observe(prog_name="python -m contracts.observe")

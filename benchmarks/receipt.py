"""Twelve steps of a one-card recipe, and their receipt by the reference's own code.

    python -m benchmarks.receipt --out reports/gpu

A process of its own: where it comes from is taken down before torch is loaded, and only it holds the device's memory.
"""

import argparse
import datetime
import os
import sys
from dataclasses import replace
from pathlib import Path

from contracts.instruments import provenance
from contracts.instruments.atomic_write import write_whole
from contracts.instruments.ranks import ALONE
from contracts.spec import Batch, Degrees, Lane, Recipe
from contracts.spec.receipt import LaunchedRun, Preflight, Provenance, ReportedStep
from contracts.stacks.reference.launch import launch
from contracts.stacks.reference.receipts import receipt
from contracts.stacks.reference.training.run_facts import RankFacts, RankReporter

STEPS, WARMUP = 12, 2


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receipt", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--host", default=os.environ.get("RANKPROOF_HOST"), help="box@region, for the receipt")
    asked = parser.parse_args(argv)
    asked.out.mkdir(parents=True, exist_ok=True)
    taken = provenance.take(folder=Path.cwd(), host=asked.host, devices=int(asked.device != "cpu"))  # before torch
    path = _receipt(asked.out / "receipt.json", asked.device, taken)
    print(f"receipt in {path}")  # noqa: T201
    return 0


def _receipt(path: Path, device: str, taken: Provenance) -> Path:
    """Steps of a one-card recipe on the device, with the memory they took, as a receipt of the reference."""
    started, recipe = _now(), _recipe(device)
    lane = Lane(mode="author_dp", regime="fsdp2", gpus=1, degrees=Degrees(), run="gpu-tier", inherited=dict(os.environ))
    launched = launch.launch(recipe, lane)
    os.environ.update(launched.env)  # what the receipt says reached the rank; before torch is loaded, which reads it
    steps, told = _steps(recipe, device)
    facts = LaunchedRun(
        recipe=recipe, lane=lane, launch=launched, provenance=taken, preflight=Preflight(ran=False),
        places=told.places, started=started, finished=_now(), ending="ok", exit_code=0, steps=steps, warmup=WARMUP,
        bounded=STEPS - WARMUP, memory=told.memory, backends=told.backends,
    )  # fmt: skip
    write_whole(path, receipt.write(receipt.build(facts)))
    return path


def _recipe(device: str) -> Recipe:
    from contracts.law._support.step_memory import LITTLE, ONE_CARD

    recipe = replace(LITTLE, batch=Batch(micro=2, total=2)) if device == "cpu" else ONE_CARD
    return replace(recipe, dtype="bf16")


def _steps(recipe: Recipe, device: str) -> tuple[tuple[ReportedStep, ...], RankFacts]:
    """The steps, and what the rank reports of itself after them: place, memory, kernels that ran."""
    from contracts.spec import Execution
    from contracts.stacks.reference.training.trainer import Trainer

    trainer, rank, found = Trainer(recipe, Execution(mode="author_dp", device=device)), RankReporter(ALONE), []
    rank.watch_experts(trainer)
    for _ in range(STEPS):
        done, seconds = rank.timed_step(trainer.next)  # its losses are read, so the device has come to the end of it
        found.append(
            ReportedStep(number=done.number, seconds=seconds, tokens=done.tokens, loss=done.losses["lm"],
                         grad_norm=done.grad_norm)
        )  # fmt: skip
    return tuple(found), rank.local_facts(trainer)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The settings of a training run, read from its command line and its environment."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import former_name, refuse
from contracts.stacks.reference.launch import trainer_arguments
from contracts.stacks.reference.launch.trainer_arguments import TrainerArguments

TELEMETRY, HOST, DEVICE = "RANKPROOF_TELEMETRY", "RANKPROOF_HOST", "RANKPROOF_DEVICE"
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run. `argv` is kept for the receipt; `telemetry` and `host` come from the environment."""

    asked: TrainerArguments
    argv: tuple[str, ...]
    steps: int
    save: Path | None
    resume: bool
    log_every: int
    device: str = "cpu"
    keep: int | None = None
    durable: str | None = None
    telemetry: Path | None = None
    host: str | None = None


def read(argv: tuple[str, ...], environment: Mapping[str, str]) -> Settings:
    """The settings of a run from its words and its environment.

    Raises:
        Refused: for unknown options, an illegal recipe, or a resume without a folder.
    """
    former_name.refuse_variables(environment)
    said, rest = parser(environment).parse_known_args(argv)
    asked = trainer_arguments.read(tuple(rest))
    recipe = asked.recipe
    save = said.save or (Path(recipe.checkpoint.save) if recipe.checkpoint.save else None)
    if said.resume and save is None and recipe.checkpoint.load is None:
        raise refuse("--resume", True, "needs the folder of a run", "give --save")
    if said.device not in DEVICES:
        raise refuse("--device", said.device, f"is none of {', '.join(DEVICES)}", "choose one of them")
    if said.keep is not None and said.keep < 1:
        raise refuse("--keep", said.keep, "must be at least 1", "keep the checkpoint that a resume needs")
    return Settings(
        asked=asked,
        argv=argv,
        steps=recipe.optim.steps if said.steps is None else said.steps,
        save=save,
        resume=said.resume,
        log_every=max(1, said.log_every),
        device=said.device,
        keep=said.keep,
        durable=said.durable,
        telemetry=Path(environment[TELEMETRY]) if environment.get(TELEMETRY) else None,
        host=environment.get(HOST),
    )


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The options of the command beside the words of a launch."""
    own = argparse.ArgumentParser(prog="train", allow_abbrev=False, add_help=False)
    own.add_argument("--steps", type=int)
    own.add_argument("--save", type=Path)
    own.add_argument("--resume", action="store_true")
    own.add_argument("--keep", type=int)
    own.add_argument("--durable")
    own.add_argument("--log-every", type=int, default=10)
    own.add_argument("--device", default=environment.get(DEVICE) or "auto")
    return own

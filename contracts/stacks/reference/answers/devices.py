"""What the reference answers about a device: training on it, step by step, and the allocator of its ranks."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from contracts.spec import Degrees, Execution, Lane, Mode, Recipe, Unreachable
from contracts.spec.devices import AllocatorSeen, Started, StartOptions, StepMemory
from contracts.spec.interpreter import python
from contracts.stacks.line_process import without_launcher
from contracts.stacks.reference.answers import forked_interpreter
from contracts.stacks.reference.answers.base import BuiltOfParts
from contracts.stacks.reference.answers.forked_interpreter import Asked
from contracts.stacks.reference.launch import trainer_arguments
from contracts.stacks.reference.training.settings import DEVICE, TELEMETRY

LIMIT_S = 120.0


class DeviceAnswers(BuiltOfParts):
    """The answers of `Reference` on this subject."""

    def step_memory(self, recipe: Recipe, mode: Mode, device: str, steps: int) -> tuple[StepMemory, ...]:
        from contracts.instruments.memory import Meter
        from contracts.stacks.reference.training.trainer import Trainer

        meter, found = Meter(device), []
        held: list[Trainer] = []
        meter.during(lambda: held.append(Trainer(recipe, Execution(mode=mode, device=device), self.parts())))
        for step in range(1, steps + 1):
            seen = meter.during(held[0].next)
            found.append(StepMemory(step=step, held=seen.held, peak=seen.peak, reserved=seen.reserved))
        return tuple(found)

    def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
        command = (
            *python("-W", "ignore", "-m", "contracts.stacks.reference.answers.allocator_probe"),
            device,
        )
        done = subprocess.run(
            command, env={**own, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise Unreachable(f"a process that takes memory from {device} ended: {last}")
        return AllocatorSeen(**json.loads(done.stdout.strip().splitlines()[-1]))

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int, options: StartOptions) -> Started:
        with tempfile.TemporaryDirectory() as place:
            told = Path(place, "telemetry.jsonl")
            device = "cuda" if os.environ.get(DEVICE) == "cuda" else "cpu"
            variables = {**without_launcher(os.environ), TELEMETRY: str(told), DEVICE: device, **environment}
            words = ("contracts.stacks.reference.train", *arguments(recipe, steps, options))
            asked = Asked(words=words, said="", environment=variables, folder=place)
            done = forked_interpreter.run(asked, seconds=LIMIT_S)
            lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
        took = sum("step" in json.loads(line) for line in lines)
        return Started(exit_code=done.returncode, steps=took, words=done.stderr.strip()[-2000:])


def arguments(recipe: Recipe, steps: int, options: StartOptions) -> tuple[str, ...]:
    """The arguments of the command."""
    lane = Lane(mode=recipe.modes[0], regime="fsdp2", gpus=1, degrees=Degrees())
    given = {"steps": steps, "save": options.save, "keep": options.keep, "durable": options.durable}
    words = trainer_arguments.write(recipe, lane, Degrees())
    words += tuple(word for name, value in given.items() if value is not None for word in (f"--{name}", str(value)))
    return (*words, "--resume") if options.resume else words

"""What the reference answers about a step at its true size."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, cast

from contracts.spec import codec
from contracts.spec.errors import NotOffered, refuse
from contracts.spec.recipe import Recipe
from contracts.spec.traffic import Rehearsal, Routing
from contracts.spec.training import Execution
from contracts.stacks.reference.answers.base import BuiltOfParts

if TYPE_CHECKING:
    from contracts.stacks.reference.training.trainer import Trainer

PATIENCE_S = 240.0


class DryRunAnswers(BuiltOfParts):
    """The answer of `Reference` on this subject."""

    QUESTIONS: frozenset[str] = frozenset({"rehearse"})

    def trainer_of(self, execution: Execution) -> type[Trainer]:
        raise NotImplementedError  # TrainingAnswers'

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        import torch.distributed as dist

        if not 0 <= rank < execution.world:
            raise refuse("rank", rank, f"must lie in 0 … {execution.world - 1}", "count ranks from 0")
        if execution.compile != "none":
            raise NotOffered("what a compiled graph issues is not seen; rehearse the execution uncompiled", "stack")
        if dist.is_initialized():
            return self.rehearsed_elsewhere(recipe, execution, rank, routing)
        return self.rehearsed_here(recipe, execution, rank, routing)

    def rehearsed_here(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        from contracts.stacks.reference.parallel import dry_run

        kind, parts = self.trainer_of(execution), self.parts()
        return dry_run.dry_run_step(recipe, execution, rank, routing, kind, parts)  # type: ignore[arg-type]  # a class is

    def rehearsed_elsewhere(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        """In a process of its own, for one that is a rank of a real world already."""
        said = [codec.encode(recipe), codec.encode(execution), rank, routing]
        words = ("-m", "contracts.stacks.reference.answers.traffic", type(self).__module__, type(self).__qualname__)
        done = subprocess.run(
            (sys.executable, "-P", "-W", "ignore", *words), input=json.dumps(said), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"a rehearsal in a process of its own failed: {done.stderr.strip()[-500:]}")
        return codec.loads(Rehearsal, done.stdout.splitlines()[-1])


if __name__ == "__main__":
    module, name = sys.argv[1:]
    stack = getattr(importlib.import_module(module), name)()
    asked, execution, rank, routing = json.load(sys.stdin)
    found = stack.rehearsed_here(
        codec.decode(Recipe, asked), codec.decode(Execution, execution), rank, cast(Routing, routing)
    )
    sys.stdout.write(codec.dumps(found) + "\n")

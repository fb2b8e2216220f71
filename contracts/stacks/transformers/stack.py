"""transformers as a stack under test: what it answers, and what was done for each answer."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from contracts.spec.array import Arrays, Shape
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.errors import Unreachable
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Layout
from contracts.spec.training import Built, Execution, Pass, Session, Tokens, Trained
from contracts.stacks.transformers.abilities import ABILITIES

NEWEST = "5.23.0"
OWN = "built from a recipe, run by its own Trainer"


def installed() -> str | None:
    """The version in this interpreter."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


class Transformers:
    """An installed transformers, in this process.

    Raises:
        Unreachable: when transformers, or the requested version, is not installed in this interpreter.
    """

    name = "transformers"
    abilities = ABILITIES
    conventions: Mapping[str, str] = {
        "rope-angles": "float32",
        "softmax-router": "activations",
        "gate-sum": "1e-20",
        "first-rate": "step-0",
        "warm-up-from": "min-lr",
        "validation-mean": "batches",
    }
    layouts: frozenset[Layout] = frozenset({"borrowed"})

    def __init__(self, version: str | None = None) -> None:
        found = installed()
        if found is None or version not in (None, found):
            wanted = version or NEWEST
            here = f"transformers {found}" if found else "no transformers"
            raise Unreachable(
                f"there is {here} in this interpreter: `.ci/transformers-env {wanted} .venv-transformers-{wanted}` "
                f"makes one for {wanted}, and its bin/rankproof judges it"
            )
        from contracts.stacks.transformers.shims import SHIMS

        self.version = found
        block = "; ".join(SHIMS.values())
        wide = f"{OWN}; in float64 substituted: {SHIMS['wide']}"
        said = {"built": OWN, "initial": OWN, "run_model": wide, "train": wide}
        said |= {"block_weights": OWN, "run_block": f"substituted: {block}"}
        self.offers = frozenset(said)
        self.labels: Mapping[str, str] = said

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        from contracts.stacks.transformers.blocks import block_weights

        return block_weights(recipe, layer, mode)

    def run_block(self, call: BlockCall) -> BlockRun:
        from contracts.stacks.transformers.blocks import run_block

        return run_block(call)

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        from contracts.stacks.transformers.training import built

        return built(recipe)

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        from contracts.stacks.transformers.training import initial

        return initial(recipe)

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        from contracts.stacks.transformers.training import run_model

        return run_model(recipe, execution, weights, batch, backward)

    def train(self, session: Session) -> Trained:
        from contracts.stacks.transformers.training import train

        return train(session)

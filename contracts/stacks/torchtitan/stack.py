"""torchtitan as a stack under test: what it answers, and what was changed for each answer."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from contracts.spec.array import Shape
from contracts.spec.blocks import BlockCall, BlockRun
from contracts.spec.errors import NotOffered, Unreachable
from contracts.spec.lacks import Lack
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees, Layout, Topology
from contracts.spec.training import Built, Session, Trained
from contracts.stacks.torchtitan import shims
from contracts.stacks.torchtitan.abilities import ABILITIES, CONVENTIONS

NEWEST = "0.3.0"
STEPS = ("device", "kernels", "experts", "sums", "stages", "attention", "compiled")
BLOCK = ("device", "kernels", "experts", "attention", "wide", "gate")
"""The changes for a question, by their names in `shims.SHIMS`."""


def installed() -> str | None:
    """The version in this interpreter."""
    try:
        return importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        return None


def _shimmed(names: tuple[str, ...]) -> str:
    return f"shimmed: {'; '.join(shims.SHIMS[name] for name in names)}"


class Torchtitan:
    """An installed torchtitan, in this process.

    Raises:
        Unreachable: when torchtitan, or the requested version, is not installed in this interpreter.
    """

    name = "torchtitan"
    conventions: Mapping[str, str] = CONVENTIONS
    layouts: frozenset[Layout] = frozenset({"borrowed"})

    def __init__(self, version: str | None = None) -> None:
        found = installed()
        if found is None or version not in (None, found):
            wanted = version or NEWEST
            here = f"torchtitan {found}" if found else "no torchtitan"
            raise Unreachable(
                f"there is {here} in this interpreter: `.ci/titan-env {wanted} .venv-torchtitan-{wanted}` makes one "
                f"for {wanted}, and its bin/rankproof judges it"
            )
        self.version = found
        device = f"shimmed: {shims.SHIMS['device']}"
        said = {"topology": f"{device}; torch's fake process group"}
        if found == NEWEST:
            steps, block = (_shimmed(every) for every in (STEPS, BLOCK))
            said |= {"built": device, "train": steps, "block_weights": device, "run_block": block}
        self.abilities = ABILITIES if found == NEWEST else None
        self.offers = frozenset(said)
        self.labels: Mapping[str, str] = said
        shims.without_triton()
        shims.on_cpu()

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        from contracts.stacks.torchtitan.topology import topology

        if layout != "borrowed":
            lack: Lack = "stack" if degrees.ep > 1 else "case"  # without EP both layouts have the same ranks
            raise NotOffered("torchtitan carves experts out of the data-parallel and tensor-parallel ranks: borrowed",
                             lack)  # fmt: skip
        return topology(degrees, world)

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        from contracts.stacks.torchtitan.built_model import built

        return built(recipe)

    def train(self, session: Session) -> Trained:
        shims.experts_keep_their_dtype()
        from contracts.stacks.torchtitan.training import train

        return train(session)

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        from contracts.stacks.torchtitan.blocks import block_weights

        return block_weights(recipe, layer)

    def run_block(self, call: BlockCall) -> BlockRun:
        from contracts.stacks.torchtitan.blocks import run_block

        return run_block(call)

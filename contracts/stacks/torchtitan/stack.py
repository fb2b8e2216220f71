"""torchtitan as a party: what it answers, and how the answers came about."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from contracts.spec.errors import NotOffered, Unreachable
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees, Layout, Topology
from contracts.spec.training import Built, Session, Trained
from contracts.stacks.torchtitan import shims

NEWEST = "0.3.0"


def installed() -> str | None:
    """The version in this interpreter."""
    try:
        return importlib.metadata.version("torchtitan")
    except importlib.metadata.PackageNotFoundError:
        return None


class Torchtitan:
    """An installed torchtitan, asked in process.

    Raises:
        Unreachable: when it, or the version that is asked for, is not installed in this interpreter.
    """

    name = "torchtitan"
    layouts: frozenset[Layout] = frozenset({"borrowed"})

    def __init__(self, version: str | None = None) -> None:
        found = installed()
        if found is None or version not in (None, found):
            wanted = version or NEWEST
            here = f"torchtitan {found}" if found else "no torchtitan"
            raise Unreachable(
                f"there is {here} in this interpreter: `.ci/titan-env {wanted} .venv-torchtitan-{wanted}` makes one "
                f"for {wanted}, and its bin/lanegate judges it"
            )
        self.version = found
        self.offers = frozenset({"topology", "built", "train"} if found == NEWEST else {"topology"})
        every = "; ".join(shims.SHIMS.values())
        device = f"shimmed: {shims.SHIMS['device']}"
        said = {"topology": f"{device}; torch's fake process group", "built": device, "train": f"shimmed: {every}"}
        self.labels: Mapping[str, str] = {question: said[question] for question in self.offers}
        shims.without_triton()
        shims.on_cpu()

    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        from contracts.stacks.torchtitan.topology import topology

        if layout != "borrowed":
            raise NotOffered("torchtitan carves experts out of the data-parallel and tensor-parallel ranks: borrowed")
        return topology(degrees, world)

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        from contracts.stacks.torchtitan.built import built

        return built(recipe)

    def train(self, session: Session) -> Trained:
        shims.experts_keep_their_dtype()
        from contracts.stacks.torchtitan.training import train

        return train(session)

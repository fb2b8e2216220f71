"""Numeric answers of the Megatron-Core in this interpreter: blocks, training steps, live process groups."""

import importlib.util
from collections.abc import Mapping

import torch

from contracts.spec import (
    Array,
    Arrays,
    Blend,
    BlockCall,
    BlockRun,
    Built,
    Degrees,
    DeltaCall,
    DeltaRun,
    Execution,
    Layout,
    LiveMesh,
    Loaded,
    Messages,
    Mode,
    NotOffered,
    Pass,
    Recipe,
    Rehearsal,
    Routing,
    Session,
    Shape,
    Snapshot,
    Split,
    Tokens,
    Trained,
    WriteFault,
    Written,
)
from contracts.spec import pattern as patterns
from contracts.stacks.kit import dry_runs
from contracts.stacks.kit.messages import watched
from contracts.stacks.megatron import (
    blends,
    blocks,
    checkpoint_store,
    fsdp,
    losses,
    mamba_kernels,
    muon,
    observed_runs,
    process_groups,
    shims,
    training,
)
from contracts.stacks.megatron import distributed_optimizer as distributed
from contracts.stacks.megatron.built_model import built
from contracts.stacks.megatron.mamba_block import declined
from contracts.stacks.megatron.model import LATENT

STORE = ("write_checkpoint", "write_on_ranks", "latest_checkpoint", "load_checkpoint")
"""What its training script answers; 0.16.1 does not ship it."""
LOCAL = "; the local specification, Megatron's own without Transformer Engine"


TRAINED = shims.LABEL + LOCAL + LATENT + mamba_kernels.LABEL + shims.WIDE + shims.BIASED


class NumericAnswers:
    """The installed Megatron-Core, in this process: it loads torch, and replaces what a CPU lacks during a question."""

    labels: Mapping[str, str] = {
        "live_mesh": "unpatched, over the ranks that are here; gloo twins left out",
        "reduced": shims.LABEL,
        "block_weights": shims.LABEL + LOCAL + mamba_kernels.LABEL,
        **dict.fromkeys(("built", "initial"), shims.LABEL + LOCAL + LATENT + mamba_kernels.LABEL),
        "run_block": shims.LABEL + LOCAL + LATENT + mamba_kernels.LABEL + shims.WIDE,
        "run_model": TRAINED,
        **dict.fromkeys(("train", "messages"), TRAINED + fsdp.LABEL + losses.LABEL + muon.LABEL),
        "run_delta_rule": f"its own operations of deterministic mode{shims.WIDE}",
        "rehearse": shims.LABEL + LOCAL + LATENT + mamba_kernels.LABEL + fsdp.LABEL + "; torch's fake process group",
        "trace": f"a loop of its QuickStart, observed; {shims.LABEL}{LOCAL}",
    }
    offers = frozenset(labels)

    def __init__(self, *, distributed_optimizer: bool = False) -> None:
        self._distributed = distributed_optimizer
        if distributed_optimizer:
            told = {each: self.labels[each] + distributed.LABEL for each in ("train", "messages", "rehearse")}
            self.labels = {**self.labels, **told}
        if importlib.util.find_spec("megatron.training") is not None:
            stored = dict.fromkeys(STORE, shims.LABEL + checkpoint_store.LABEL)
            self.labels = {**self.labels, **stored, "rows_of": blends.LABEL}
            self.offers = frozenset(self.labels)

    def live_mesh(self, degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
        _only_borrowed(layout)
        return process_groups.live_mesh(degrees, world, contribution)

    def reduced(self, degrees: Degrees, world: int, layout: Layout, tensor: Array, strided: bool) -> Array:
        if degrees.ep > 1:
            _only_borrowed(layout)
        with shims.running_on():
            return process_groups.reduced(degrees, world, tensor, strided)

    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        return blocks.block_weights(recipe, layer, mode)

    def run_block(self, call: BlockCall) -> BlockRun:
        return blocks.run_block(call)

    def run_delta_rule(self, call: DeltaCall) -> DeltaRun:
        return blocks.run_delta_rule(call)

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        _mixers(recipe, mode)
        return built(recipe)

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        _mixers(recipe, mode)
        return training.initial(recipe)

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        _mixers(recipe, execution.mode)
        return training.run_model(recipe, execution, weights, batch, backward)

    def train(self, session: Session) -> Trained:
        degrees = session.execution.degrees
        if degrees.ep > 1:
            _only_borrowed(session.execution.layout)
        _mixers(session.recipe, session.execution.mode)
        return training.train(session, distributed=self._distributed)

    def rows_of(
        self, blend: Blend, split: Split, batch: int, rank: int, dp: int, consumed: int
    ) -> tuple[tuple[int, ...], ...]:
        return blends.rows_of(blend, split, batch, rank, dp, consumed)

    def messages(self, session: Session) -> Messages:
        return watched(self.train, session)

    def rehearse(self, recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
        if execution.degrees.ep > 1:
            _only_borrowed(execution.layout)
        _mixers(recipe, execution.mode)
        if torch.distributed.is_initialized():
            own = ("contracts.stacks.megatron", "Megatron", {"distributed_optimizer": self._distributed})
            return dry_runs.elsewhere(own, recipe, execution, rank, routing)
        return training.rehearsed(recipe, execution, rank, routing, self._distributed)

    def trace(self, run: str = "judged") -> str:
        return observed_runs.trace(run)

    def write_checkpoint(self, folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
        return checkpoint_store.write_checkpoint(folder, state, file_bytes, fault)

    def write_on_ranks(
        self, folder: str, state: Snapshot, ranks: int, faults: Mapping[int, WriteFault]
    ) -> tuple[Written, ...]:
        return checkpoint_store.write_on_ranks(folder, state, ranks, faults)

    def latest_checkpoint(self, folder: str) -> int | None:
        return checkpoint_store.latest_checkpoint(folder)

    def load_checkpoint(self, folder: str, step: int | None, target: Snapshot) -> Loaded:
        return checkpoint_store.load_checkpoint(folder, step, target)


def _mixers(recipe: Recipe, mode: Mode) -> None:
    if "M" in patterns.parse(recipe.pattern, recipe.depth).letters:
        declined(mode)


def _only_borrowed(layout: Layout) -> None:
    if layout != "borrowed":
        raise NotOffered(f"Megatron-Core builds the borrowed layout, not {layout}", "stack")

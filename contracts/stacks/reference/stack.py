"""The reference stack: answers every question of `spec.stack` with its own code.

It builds both parallel layouts; the seeds' `own-axis` is its own.
"""

import functools
from collections.abc import Mapping

from contracts.spec import (
    Degrees,
    ExpertLane,
    GradientReduction,
    GroupCall,
    Kind,
    Lane,
    Launch,
    Layout,
    Placement,
    Recipe,
    Reread,
    Topology,
    Translation,
    presets,
    questions,
    refuse,
)
from contracts.spec import pattern as patterns
from contracts.spec import topology as mesh
from contracts.stacks.reference.answers.blocks import BlockAnswers, DeltaRuleAnswers
from contracts.stacks.reference.answers.bringup import BringupAnswers
from contracts.stacks.reference.answers.checkpointing import CheckpointAnswers
from contracts.stacks.reference.answers.compiling import CompilingAnswers
from contracts.stacks.reference.answers.devices import DeviceAnswers
from contracts.stacks.reference.answers.kernel_selection import KernelSelectionAnswers
from contracts.stacks.reference.answers.model import ModelAnswers
from contracts.stacks.reference.answers.observing import ObservingAnswers
from contracts.stacks.reference.answers.traffic import DryRunAnswers, MessageAnswers
from contracts.stacks.reference.answers.training import TrainingAnswers
from contracts.stacks.reference.answers.world import WorldAnswers
from contracts.stacks.reference.launch import hosts, trainer_arguments
from contracts.stacks.reference.launch import launch as launching

VERSION = "0.1.0"


class Reference(
    BringupAnswers,
    KernelSelectionAnswers,
    BlockAnswers,
    DeltaRuleAnswers,
    ModelAnswers,
    TrainingAnswers,
    MessageAnswers,
    DryRunAnswers,
    CheckpointAnswers,
    CompilingAnswers,
    DeviceAnswers,
    WorldAnswers,
    ObservingAnswers,
):
    """The stack that ships here: a small real hybrid stack, the default party under test.

    What it says about launch and mesh stands below; what it says about the node and the evidence in the files of the
    sides it inherits.
    """

    name = "reference"
    version = VERSION
    layouts: frozenset[Layout] = frozenset({"own-axis", "borrowed"})
    computes_on = frozenset({"cpu", "cuda"})
    labels: Mapping[str, str] = {}
    offers = frozenset(questions()) - {"read_argv", "read_pattern"}  # a launcher's own parser answers these
    repeats = frozenset({"built"})  # read off a model on the meta device: it depends on nothing but its recipe

    capabilities: frozenset[str] = frozenset({"dsa"})
    """What the runtime can do; without `dsa` the sparse-attention symbol is refused."""

    # pattern → block
    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return patterns.blocks(patterns.parse(pattern, depth))

    def render(self, pattern: str, depth: int) -> str:
        return patterns.render(patterns.parse(pattern, depth))

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        if dsa and "dsa" not in self.capabilities:
            raise refuse("dsa", True, "needs the runtime capability dsa", "turn dsa off; it is not substituted")
        return patterns.translate(patterns.parse(pattern, depth), moe=moe, dsa=dsa, mtp_depth=mtp_depth)

    def stages(self, pattern: str, depth: int, pp: int) -> tuple[str, ...]:
        return patterns.stages(patterns.parse(pattern, depth), pp)

    def placement(self, pattern: str, depth: int, sparse_ranks: tuple[int, ...]) -> Placement:
        return patterns.placement(patterns.parse(pattern, depth), sparse_ranks)

    # names and recipes
    def preset(self, name: str, acknowledge: tuple[str, ...]) -> Recipe:
        return presets.resolve(name, acknowledge)

    def preset_names(self) -> tuple[str, ...]:
        return presets.names()

    def divide(self, recipe: Recipe, degrees: Degrees, world: int, layout: Layout) -> int:
        return launching.divide(recipe, degrees, world, layout)

    def host(self, name: str) -> str:
        return hosts.identify(name)

    # launch
    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return launching.launch(recipe, lane)

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        read = trainer_arguments.read(argv)
        return Reread(recipe=read.recipe, mode=read.mode, degrees=read.degrees)

    # mesh
    def topology(self, degrees: Degrees, world: int, layout: Layout) -> Topology:
        return mesh.topology(degrees, world, layout)

    def group_calls(self, degrees: Degrees, world: int, layout: Layout, rank: int) -> tuple[GroupCall, ...]:
        calls = _group_calls(degrees, world, layout)
        if not 0 <= rank < world:
            raise refuse("rank", rank, f"must lie in 0 … {world - 1}", "count ranks from 0")
        return calls  # every rank makes every call

    def gradient_reduction(
        self, degrees: Degrees, world: int, layout: Layout, rank: int, kind: Kind
    ) -> GradientReduction:
        return mesh.gradient_reduction(degrees, world, layout, rank, kind)

    def expert_lane(self, degrees: Degrees, expert_tp_mesh: bool, local_sequence: int, hidden: int) -> ExpertLane:
        """With EP active the dispatcher moves tokens itself: no manual SP hook, the router sees its local shard."""
        active = degrees.ep_active
        gathers = degrees.sp and not active
        sequence = local_sequence * degrees.tp if gathers else local_sequence
        return ExpertLane(
            ep_active=active, ep_local=active, manual_sp=gathers, ep_lane=active, router_in=(1, sequence, hidden)
        )


@functools.lru_cache(maxsize=8)  # a world of 65 536 ranks takes 0.3 s and 60 MB, and is asked rank by rank
def _group_calls(degrees: Degrees, world: int, layout: Layout) -> tuple[GroupCall, ...]:
    return mesh.group_calls(mesh.topology(degrees, world, layout))

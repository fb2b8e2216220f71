"""Stacks with one fault: a lane or a host is not what its name says."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Mode, Recipe
from contracts.spec.topology import Degrees
from contracts.stacks.reference.stack import Reference

BOTH: tuple[Mode, ...] = ("nemo_native", "author_dp")


@mutant(of="NAME-04b", case="tp", says="runs as nemo_native with tp 1", bugs=("PRV-04",))
class RunsItsOwnTensorDegree(Reference):
    """The launch takes TP from a default instead of the mode: a preset named tp2 runs TP 1."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, degrees=replace(launch.degrees, tp=1, sp=False))


@mutant(of="NAME-05", case="author", says="author_dp runs with tp 2 and sp True, expected tp 1", bugs=("PRV-04",))
class ShardsTheCustomMixer(Reference):
    """author_dp is launched with TP 2, so its custom mixer is silently replaced, or wrong because its heads are not
    sharded.
    """

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, degrees=Degrees(tp=2, sp=True, ep=launch.degrees.ep, etp=1))


@mutant(of="NAME-05", case="native-fsdp2", says="expected tp 2 and sp True", bugs=("PRV-04",))
class NativeWithoutSequenceParallel(Reference):
    """nemo_native runs TP 2 without sequence parallelism: its activations no longer fit, or belong to another lane."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, degrees=replace(launch.degrees, sp=False))


@mutant(of="NAME-05", case="author", says="author_dp runs the launcher's own mixer", bugs=("PRV-04",))
class AuthorLaneWithTheNativeSpec(Reference):
    """The author lane keeps its degrees but gets the built-in layer spec, so its own kernels never run."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        native = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
        return super().launch(replace(recipe, author_spec=native), lane)


@mutant(of="NAME-05a", case="native", says="was accepted, expected a refusal", bugs=("PRV-04",))
class RunsAnyModeUnderAnyName(Reference):
    """The mode in a name is only a hint: a recipe named native runs the custom mixer when the lane asks for it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, modes=BOTH), lane)


@mutant(of="NAME-05a", case="author", says="was accepted, expected a refusal", bugs=("PRV-04",))
class FallsBackToTheModeItHas(Reference):
    """A mode that the recipe does not have is replaced by one it has, and the report names the requested mode."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, lane if lane.mode in recipe.modes else replace(lane, mode=recipe.modes[0]))


@mutant(of="NAME-09", case="old-europe", says="is identified as 'canon-8'")
class ForgetsTheRegion(Reference):
    """A host is identified by its box alone, so boxes of one name in two regions are one host."""

    def host(self, name: str) -> str:
        return super().host(name).split("@")[0]


@mutant(of="NAME-09", case="other-box-there", says="is identified as 'h200@us-west1-c'")
class MergesBoxesOfARegion(Reference):
    """All boxes of a region are one host, as if they shared wheels and drivers."""

    def host(self, name: str) -> str:
        return f"h200@{super().host(name).split('@')[1]}"


@mutant(of="NAME-09a", case="the-H200", says="was accepted, expected a refusal")
class KnowsTheH200(Reference):
    """`the H200` resolves to the one box that the author of the code had."""

    def host(self, name: str) -> str:
        return super().host("canon-8@europe-west4-a" if "H200" in name else name)


@mutant(of="NAME-09a", case="box-alone", says="was accepted, expected a refusal")
class AssumesTheRegion(Reference):
    """A box without a region is assumed to be in the region of the newest boxes."""

    def host(self, name: str) -> str:
        return super().host(name if "@" in name or not name else f"{name}@us-west1-c")

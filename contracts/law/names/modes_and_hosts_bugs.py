"""Stacks with one fault: a lane or a host is not what its name says."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Degrees, Mode
from contracts.stacks.reference.stack import Reference

BOTH: tuple[Mode, ...] = ("nemo_native", "author_dp")


@broken(Reference, "launch", "NAME-04b[tp]: runs as nemo_native with tp 1", bugs=("PRV-04",))
def runs_its_own_tensor_degree(former, self, recipe, lane):
    """The launch takes TP from a default instead of the mode: a preset named tp2 runs TP 1."""
    launch = former(self, recipe, lane)
    return replace(launch, degrees=replace(launch.degrees, tp=1, sp=False))


@broken(Reference, "launch", "NAME-05[author]: author_dp runs with tp 2 and sp True, expected tp 1", bugs=("PRV-04",))
def shards_the_custom_mixer(former, self, recipe, lane):
    """author_dp is launched with TP 2, so its custom mixer is silently replaced, or wrong because its heads are not
    sharded.
    """
    launch = former(self, recipe, lane)
    return replace(launch, degrees=Degrees(tp=2, sp=True, ep=launch.degrees.ep, etp=1))


@broken(Reference, "launch", "NAME-05[native-fsdp2]: expected tp 2 and sp True", bugs=("PRV-04",))
def native_without_sequence_parallel(former, self, recipe, lane):
    """nemo_native runs TP 2 without sequence parallelism: its activations no longer fit, or belong to another lane."""
    launch = former(self, recipe, lane)
    return replace(launch, degrees=replace(launch.degrees, sp=False))


@broken(Reference, "launch", "NAME-05[author]: author_dp runs the launcher's own mixer", bugs=("PRV-04",))
def author_lane_with_the_native_spec(launch, self, recipe, lane):
    """The author lane keeps its degrees but gets the built-in layer spec, so its own kernels never run."""
    native = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
    return launch(self, replace(recipe, author_spec=native), lane)


@broken(Reference, "launch", "NAME-05a[native]: was accepted, expected a refusal", bugs=("PRV-04",))
def runs_any_mode_under_any_name(launch, self, recipe, lane):
    """The mode in a name is only a hint: a recipe named native runs the custom mixer when the lane asks for it."""
    return launch(self, replace(recipe, modes=BOTH), lane)


@broken(Reference, "launch", "NAME-05a[author]: was accepted, expected a refusal", bugs=("PRV-04",))
def falls_back_to_the_mode_it_has(launch, self, recipe, lane):
    """A mode that the recipe does not have is replaced by one it has, and the report names the requested mode."""
    return launch(self, recipe, lane if lane.mode in recipe.modes else replace(lane, mode=recipe.modes[0]))


@broken(Reference, "host", "NAME-09[old-europe]: is identified as 'canon-8'")
def forgets_the_region(host, self, name):
    """A host is identified only by its box, so boxes of one name in two regions are one host."""
    return host(self, name).split("@")[0]


@broken(Reference, "host", "NAME-09[other-box-there]: is identified as 'h200@us-west1-c'")
def merges_boxes_of_a_region(host, self, name):
    """All boxes of a region are one host, as if they shared wheels and drivers."""
    return f"h200@{host(self, name).split('@')[1]}"


@broken(Reference, "host", "NAME-09a[the-H200]: was accepted, expected a refusal")
def knows_the_h200(host, self, name):
    """`the H200` resolves to the one box that the author of the code had."""
    return host(self, "canon-8@europe-west4-a" if "H200" in name else name)


@broken(Reference, "host", "NAME-09a[box-alone]: was accepted, expected a refusal")
def assumes_the_region(host, self, name):
    """A box without a region is assumed to be in the region of the newest boxes."""
    return host(self, name if "@" in name or not name else f"{name}@us-west1-c")

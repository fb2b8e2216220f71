"""Pipeline stages: how a pattern is cut, and that a cut loses, moves and re-tiles nothing."""

from contracts.contract import contract
from contracts.law._support.answers import megatron_flags, refusal_of
from contracts.law._support.layouts import numbers_in
from contracts.spec import Degrees, Lane, Moe, Recipe, Stack

NAM56R = "AEMEAEMEAEMRAEMEAEMEAEMRAEMEAEMEAEMRAEMEAEMEAEMRAEME"  # AEMEAEMEAEMR at 52: four periods and AEME

EVEN = {f"nam56r-pp{pp}": (pp, 52 // pp) for pp in (1, 2, 4, 13, 26, 52)}


@contract("PAT-08", asks="stages", cases=EVEN, source="bringup F10")
def stages_concatenate_to_the_pattern(stack: Stack, pp: int, layers: int) -> None:
    """Pipeline stages are equal in size and concatenate, in model order, to the main pattern: 52 layers over 1, 2, 4,
    13, 26 or 52 stages.

    A stage that tiles the pattern from its own first layer has the right length and the wrong blocks.
    """
    stages = stack.stages("AEMEAEMEAEMR", 52, pp)
    sizes = [len(stage) for stage in stages]
    assert sizes == [layers] * pp, f"{len(stages)} stages of {sorted(set(sizes))} layers, expected {pp} of {layers}"
    for first, stage in zip(range(0, 52, layers), stages, strict=True):
        wanted = NAM56R[first : first + layers]
        assert stage == wanted, f"the stage from layer {first + 1} (1-based) is {stage}, expected {wanted}"


UNEVEN = {f"pp{pp}": ("AEMEAEMEAEMR", 52, pp) for pp in (0, 3, 5, 8, 12, 51, 104)}


@contract("PAT-08a", asks="stages", cases=UNEVEN | {"30-layers-pp4": ("AEMEA", 30, 4)}, source="bringup F10")
def a_cut_that_does_not_divide_is_refused(stack: Stack, pattern: str, depth: int, pp: int) -> None:
    """A stack refuses a number of stages that does not divide the depth, and names both numbers (only the stages if
    they are 0).

    30 layers over 4 stages once built 28. Two layers were missing, and the reported throughput rose.
    """
    refused = refusal_of(stack.stages, pattern, depth, pp)
    wanted = {pp, depth} if pp else {pp}
    missing = wanted - numbers_in(refused)
    assert not missing, f"{depth} layers over {pp} stages: the refusal does not name {sorted(missing)}: {refused}"


WRITTEN = {  # pattern with cuts, depth, pp → stages; None where it is refused
    "three-unequal": ("AEM|EAEMEA|ER", 11, 3, ("AEM", "EAEMEA", "ER")),
    "fewer-on-the-ends": ("AE|MEAEM|EAEMR|AE", 14, 4, ("AE", "MEAEM", "EAEMR", "AE")),
    "virtual-two-a-stage": ("AE|MEA|EMEA|R", 10, 2, ("AE", "MEA", "EMEA", "R")),
    "three-over-two": ("AEM|EAEMEA|ER", 11, 2, None),
    "two-over-four": ("AEME|AEMR", 8, 4, None),
}


@contract("PAT-08b", asks="stages", cases=WRITTEN, source="bringup F10")
def unequal_stages_are_those_written_out(
    stack: Stack, pattern: str, depth: int, pp: int, expected: tuple[str, ...] | None
) -> None:
    """A stack keeps stages written out with `|` exactly as written, and refuses a number of segments that is not a
    multiple of pp.

    A stack that sliced the pattern evenly ignored the layer counts of the first and last stage and ran the wrong
    blocks.
    """
    if expected is None:
        refused = refusal_of(stack.stages, pattern, depth, pp)
        assert pp in numbers_in(refused), f"the refusal does not name {pp}: {refused}"
        return
    stages = stack.stages(pattern, depth, pp)
    joined = "".join(stages)
    assert joined == pattern.replace("|", ""), f"the stages concatenate to {joined}, not to {pattern}"
    if len(expected) == pp:  # virtual stages may be listed by rank or by segment
        assert stages == expected, f"the stages are {stages}, expected {expected}"


RECUT = {  # the recipe's degrees, the lane's → layers of each stage
    "pp2-becomes-4": (Degrees(pp=2), Degrees(pp=4, tp=2, sp=True), (7, 7, 7, 7)),
    "pp4-becomes-2": (Degrees(pp=4), Degrees(pp=2, tp=2, sp=True), (14, 14)),
    "pp2-becomes-1": (Degrees(pp=2), Degrees(tp=2, sp=True), (28,)),
}


@contract("PAT-08c", asks="launch", cases=RECUT, source="F10", layout="borrowed")
def the_launch_cuts_for_the_degrees_that_run(
    stack: Stack, own: Degrees, asked: Degrees, sizes: tuple[int, ...]
) -> None:
    """A lane that overrides the pipeline degree launches a pattern cut for that degree, not for the recipe's.

    Five recipes of one framework kept the layout of their old degree, and the stages had the wrong sizes.
    """
    recipe = Recipe(
        name="re-cut", family="nam56r", pattern="AEMEAEMEAEMR", depth=28, hidden=768, ffn_hidden=1536, heads=12,
        kv_groups=4, seq_length=512, moe=Moe(), degrees=own,
    )  # fmt: skip
    (text,) = megatron_flags(stack.launch(recipe, Lane(mode="nemo_native", degrees=asked)))["--hybrid-layer-pattern"]
    found = tuple(len(segment) for segment in text.split("/")[0].split("|"))
    assert found == sizes, f"{text} has stages of {found} layers, expected {sizes} for pp {asked.pp}"

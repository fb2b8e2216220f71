"""The parameter bytes of a built model, against the budget."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.built_model import BOTH_MODES, PRESETS, BuiltStack, size_of
from contracts.law._support.recipes import SMALL
from contracts.law._support.small_model import ROOMY, any_layout
from contracts.spec import Degrees
from contracts.spec.capacity import Spread


@contract("MEM-01a", asks=("built", "preset", "budget"), cases=PRESETS, source="hub: memory budget anatomy")
def predicted_weights_are_those_of_the_model(stack: BuiltStack, name: str) -> None:
    """On one rank, a budget's weights equal the bytes of the built model at true size: 4 bytes per float32 parameter.
    The parameters that EP may shard are exactly those of the routed experts.

    The model is built without allocating its memory.
    """
    recipe = replace(
        stack.preset(name, ()), modes=BOTH_MODES, dtype="fp32", fp8=None, batch=replace(SMALL.batch, micro=1)
    )
    built = stack.built(recipe, "nemo_native")
    spread = Spread(degrees=Degrees(), world=1, layout=any_layout(stack), sharding="none")
    (stage,) = stack.budget(replace(recipe, degrees=Degrees()), spread, ROOMY).stages
    planned = sum(line.bytes for line in stage.lines if line.part == "weights")
    held = 4 * sum(size_of(row) for row in built.parameters)
    assert planned == held, f"the budget has {planned} bytes of weights, the model {held}"
    experts = sum(size_of(row) for row in built.parameters if row.role == "expert")
    share = stage.parameters.get("ep", 0)
    assert share == experts, f"the budget has {share} parameters of routed experts, the model {experts}"

"""A model on this rank from a recipe: built, given its weights, and set to the precision asked for."""

import torch

from contracts.instruments import numerics
from contracts.spec import Arrays, Execution, NotOffered, Recipe, Refusals
from contracts.stacks.reference.model.hybrid_model import ACTIVATIONS, Model
from contracts.stacks.reference.model.init import SkipInit
from contracts.stacks.reference.model.parts import Parts


def build_model(recipe: Recipe, execution: Execution, parts: Parts, weights: Arrays | None = None) -> Model:
    """The model in the precision and on the device asked for, with its initial weights or with those given.

    Initial weights are drawn on the CPU, so that they are equal on every device.

    Raises:
        Refused: for a parameter that is not given while others are, and for a name that the model does not have.
        NotOffered: for a model in several processes or compiled, which this function does not make.
    """
    degrees = execution.degrees
    if execution.compile != "none" or execution.fsdp or degrees.pp * degrees.tp * degrees.cp * degrees.ep > 1:
        raise NotOffered("one pass through a model is answered in one process and uncompiled")
    with SkipInit():
        model = parts.model(recipe, execution.mode, parts)
    parts.initial(recipe).fill(model, (weights or {}).keys())
    if execution.precision == "float64":
        model.double()  # before weights are taken: those given in float64 are not rounded
    if weights:
        _load(model, weights)
    declared = execution.precision == "declared"
    model.activations = ACTIVATIONS[recipe.dtype] if declared else getattr(torch, execution.precision)
    model.recompute = model.recompute or execution.recompute
    return model.to(execution.device)


def _load(model: Model, weights: Arrays) -> None:
    """Load every parameter, and the buffers that are given."""
    found, held = Refusals(), model.state_dict()
    missing = sorted({name for name, _ in model.named_parameters()} - weights.keys())
    found.unless(not missing, "weights", len(weights), f"lack {', '.join(missing[:5])}", "give every parameter")
    extra = sorted(weights.keys() - held.keys())
    found.unless(not extra, "weights", len(weights), f"have {', '.join(extra[:5])}", "give what the model has")
    found.raise_any()
    model.load_state_dict(numerics.tensors(weights), strict=False)

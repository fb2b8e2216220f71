"""torch.compile: which regions are compiled, and the compiler's settings.

Every layer is a region of its own: a pattern of 52 layers has four kinds of them, and a compiled kind is shared by all
its layers. Operations that stay outside are declared in `ALLOWED`, and counted by the suite.
"""

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from contracts.spec import AllowedBreak
from contracts.stacks.reference.model.hybrid_model import Model

Compiler = str | Callable[..., Any]
Regions = Literal["none", "blocks", "model"]

KINDS = 4  # letters; all layers run one forward function, and the compiler counts recompilations by function
SHAPES = 8  # the compiler's own default for one function

ALLOWED: tuple[AllowedBreak, ...] = (
    AllowedBreak(
        site="recur",
        why="a loop over tokens: the compiler would write out every step, and compile anew for every length",
        budget=16,
    ),
)
"""Methods of mixers that stay outside the graphs, by name; a break counts once in every function around it."""

BETWEEN_RANKS: tuple[AllowedBreak, ...] = (
    AllowedBreak(
        site="hand_back",
        why="what experts give goes back in as many rows as the routers of other ranks say: ranks whose graphs differ "
        "would wait here, and a graph that is made anew for each number is no gain",
        budget=16,
    ),
)
"""What stays outside besides, where experts lie on several ranks."""


def configure_compiler() -> None:
    """The compiler's settings, for the process.

    Experts read how many rows they have (`nonzero`, `tolist`): with these captures that is a symbol in one graph, not
    a break in the middle of each layer. Past the limit the compiler falls back to eager without a word.
    """
    import torch._dynamo.config as dynamo

    dynamo.capture_dynamic_output_shape_ops = True
    dynamo.capture_scalar_outputs = True
    dynamo.recompile_limit = KINDS * SHAPES
    # At a break in the middle of a layer dynamo looks at `.grad` of what goes on, and torch warns it of its own look.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    # It stands for the context of an autograd function by an object of that class, against torch's own advice.
    warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)


def compile_regions(model: Model, regions: Regions, compiler: Compiler) -> None:
    """Compile the layers or the whole model, in place. It happens at the first call; parameters keep their names."""
    configure_compiler()
    exclude_from_graphs(model)
    if regions == "model":
        model.compile(backend=compiler)
    for layer in model.layers.values() if regions == "blocks" else ():
        layer.compile(backend=compiler)


def compiled(block: nn.Module, forward: Callable[..., Any], compiler: Compiler) -> Callable[..., Any]:
    """The forward pass of one block, compiled as a layer is."""
    configure_compiler()
    exclude_from_graphs(block)
    made: Callable[..., Any] = torch.compile(forward, backend=compiler)
    return made


def exclude_from_graphs(module: nn.Module) -> None:
    """Keep the declared methods of everything below a module out of the graphs."""
    for each in module.modules():
        for allowed in (*ALLOWED, *BETWEEN_RANKS):
            method = getattr(each, allowed.site, None)
            if method is not None:
                outside = torch.compiler.disable(method, reason=allowed.why)  # type: ignore[no-untyped-call]  # torch's
                setattr(each, allowed.site, outside)

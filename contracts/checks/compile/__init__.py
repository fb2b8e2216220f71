"""COMP: what a compiler makes of blocks, steps and layouts."""

from contracts.checks.compile import (  # isort: skip
    eager_equivalence,  # what a compiler makes of blocks and model
    compiled_experts,  # the token-choice layer compiled, at its true size on a GPU
    compiled_context_parallel,  # a state that is handed from rank to rank, compiled
    transformers,  # a step of a transformer with experts, compiled block by block on several ranks
    compiled_layouts,  # lanes of several ranks, compiled and not
    compiled_pipelines,  # stages and experts of several ranks, compiled
)

__all__ = [
    "compiled_context_parallel",
    "compiled_experts",
    "compiled_layouts",
    "compiled_pipelines",
    "eager_equivalence",
    "transformers",
]

"""COMP: what the compiler may change in blocks, steps and parallel layouts."""

from contracts.checks.compile import (  # isort: skip
    eager_equivalence,  # compiled blocks and models match eager
    compiled_experts,  # the token-choice layer compiled, at its true size on a GPU
    compiled_context_parallel,  # a state that passes from rank to rank, compiled
    transformers,  # a step of a transformer with experts, compiled block by block on several ranks
    compiled_layouts,  # parallel layouts, compiled and eager
    compiled_pipelines,  # pipeline stages and experts on several ranks, compiled
)

__all__ = [
    "compiled_context_parallel",
    "compiled_experts",
    "compiled_layouts",
    "compiled_pipelines",
    "eager_equivalence",
    "transformers",
]

"""PAT: letters → blocks, the launcher's syntax, pipeline stages, the built model."""

from contracts.checks.pattern import (  # isort: skip
    layers,  # letters → blocks
    hybrid_syntax,  # blocks → the launcher's pattern, and back through its parser
    pipeline_stages,  # blocks → pipeline stages and placements
    built_model,  # the built model: its layers, its sizes, and its forward pass
)

__all__ = [
    "built_model",
    "hybrid_syntax",
    "layers",
    "pipeline_stages",
]

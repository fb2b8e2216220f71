"""TRAF: what ranks send each other."""

from contracts.checks.traffic import (  # isort: skip
    pipeline_messages,  # what stages send each other
    collectives,  # what ranks send each other
    full_size_step,  # what a step of NAM56R sends, without a GPU
    dry_run,  # that a rehearsal is of the step that runs
    rank_classes,  # what every class of ranks sends, at true size
)

__all__ = [
    "collectives",
    "dry_run",
    "full_size_step",
    "pipeline_messages",
    "rank_classes",
]

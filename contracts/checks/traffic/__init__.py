"""TRAF: what ranks send each other in a step."""

from contracts.checks.traffic import (  # isort: skip
    pipeline_messages,  # what pipeline stages send each other
    collectives,  # what the members of a group send each other
    full_size_step,  # what a step of NAM56R sends, without a GPU
    dry_run,  # a dry run predicts the step that runs
    rank_classes,  # what every class of ranks sends, at true size
)

__all__ = [
    "collectives",
    "dry_run",
    "full_size_step",
    "pipeline_messages",
    "rank_classes",
]

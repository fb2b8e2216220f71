"""CKPT: what a checkpoint gives back, wherever it was written."""

from contracts.checks.checkpoint import (  # isort: skip
    round_trip,  # what a checkpoint gives back
    damaged_files,  # what was altered, mixed, planted
    crash_safety,  # a writer that dies, a full disk, a save that is overtaken
    latest,  # which is the newest, and where they lie
    retention,  # which may go
    weight_names,  # weights in the files of others
    resume,  # resumed is uninterrupted
    data_position,  # where a resumed run goes on
    resharding,  # checkpoints of several ranks, loaded on others
    every_layout,  # any layout goes on from any other
    coordination,  # all ranks load one, or none
    shard_locations,  # what ranks write, and where
    multi_rank_crash,  # one of several ranks dies in a save
    multi_rank_retention,  # which checkpoints several ranks keep
    async_save,  # saves of several ranks in the background
    transformers,  # checkpoints of a transformer with experts: resumed, and loaded by other layouts
)

__all__ = [
    "async_save",
    "coordination",
    "crash_safety",
    "damaged_files",
    "data_position",
    "every_layout",
    "latest",
    "multi_rank_crash",
    "multi_rank_retention",
    "resharding",
    "resume",
    "retention",
    "round_trip",
    "shard_locations",
    "transformers",
    "weight_names",
]

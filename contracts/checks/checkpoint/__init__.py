"""CKPT: save, resume, reshard and crash, on one rank and on several."""

from contracts.checks.checkpoint import (  # isort: skip
    round_trip,  # a load returns what was saved
    damaged_files,  # truncated, altered, mixed and planted files
    crash_safety,  # a writer that dies, a full disk, an asynchronous save that training overtakes
    latest,  # which checkpoint is the newest, and where checkpoints may lie
    retention,  # which checkpoints may be removed
    weight_names,  # weights in other file formats
    resume,  # bit-identical resume on one rank
    combined,  # every two features of a run, resumed, validated and recomputed
    data_position,  # place in the data, recipe and missing checkpoints at a resume
    resharding,  # a checkpoint of several ranks, loaded on the same layout and on others
    every_layout,  # every layout of four ranks loads every other one's checkpoint
    coordination,  # all ranks load one checkpoint, or none does
    shard_locations,  # where ranks write their shards
    multi_rank_crash,  # one of several ranks dies in a save
    multi_rank_retention,  # which checkpoints several ranks keep
    async_save,  # asynchronous saves of several ranks
    transformers,  # checkpoints of a transformer with experts: resumed, and loaded by other layouts
)

__all__ = [
    "async_save",
    "combined",
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

"""Which rows Megatron-Core reads of split and blended datasets: its own files, builder and sampler."""

import tempfile
from itertools import islice
from types import SimpleNamespace
from typing import Any, get_args

import torch
from numpy import int32

from contracts.spec import Blend, NotOffered, Split, decline, refuse
from contracts.stacks.megatron.checkpoint_store import training
from contracts.stacks.megatron.shims import mcore

LABEL = "its GPTDataset over numbered tokens, without a tokenizer"


def rows_of(blend: Blend, split: Split, batch: int, rank: int, dp: int, consumed: int) -> tuple[tuple[int, ...], ...]:
    """The rows that its loader gives a rank: each document is written as tokens that say which they are.

    Raises:
        Refused: for a split that its configuration or builder does not take.
        NotOffered: for weights of 0, and for an epoch without tokens, which never ends.
    """
    decline("megatron", {"stack": {"its BlendedDataset asserts that every weight is above 0": 0 in blend.weights}})
    at = get_args(Split).index(split)
    with tempfile.TemporaryDirectory(prefix="megatron-") as folder:
        dataset = _built(blend, folder)[at]
        if dataset is None:
            return ()
        sampler = training("datasets.data_samplers").MegatronPretrainingSampler(
            total_samples=len(dataset), consumed_samples=consumed, micro_batch_size=batch // dp,
            data_parallel_rank=rank, data_parallel_size=dp,
        )  # fmt: skip
        steps = ((blend.rows[at] if blend.rows else len(dataset)) - consumed) // batch
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
        return tuple(tuple(row) for step in islice(loader, steps) for row in step["tokens"].tolist())


def _built(blend: Blend, folder: str) -> Any:
    """A dataset for each split, None where its weight is 0, over files in the format of its own preprocessing."""
    gpt, builder = mcore("datasets.gpt_dataset"), mcore("datasets.blended_megatron_dataset_builder")
    first, paths = 1, [f"{folder}/{at}" for at in range(len(blend.documents))]
    for path, lengths in zip(paths, blend.documents, strict=True):
        writer = mcore("datasets.indexed_dataset").IndexedDatasetBuilder(f"{path}.bin", dtype=int32)
        for length in lengths:
            writer.add_document(torch.arange(first, first + length, dtype=torch.int32), [length])
            first += length
        writer.finalize(f"{path}.idx")

    class Ending(gpt.GPTDataset):  # type: ignore[name-defined,misc]  # Megatron is no part of the types
        def _get_num_epochs(self, tokens: int) -> Any:
            if not tokens and self.num_samples:
                words = "it counts epochs until there are enough tokens, for ever if an epoch has none"
                raise NotOffered(f"megatron: {words} (Megatron-LM #957)", "stack")
            return super()._get_num_epochs(tokens)

    try:
        config = gpt.GPTDatasetConfig(
            random_seed=blend.seed, sequence_length=blend.length, split=blend.split, path_to_cache=f"{folder}/cache",
            blend=(paths, list(blend.weights) or None), reset_position_ids=False, reset_attention_mask=False,
            tokenizer=SimpleNamespace(eod=first, pad=first + 1, vocab_size=2**17, unique_identifiers={}),
            eod_mask_loss=False, create_attention_mask=False,
        )  # fmt: skip
        rows = blend.rows or [None] * len(get_args(Split))
        return builder.BlendedMegatronDatasetBuilder(Ending, rows, lambda: True, config).build()
    except (AssertionError, ValueError) as error:
        words = str(error) or "an assertion without words"
        raise refuse("GPTDatasetConfig", repr(error), words, "see its words") from error

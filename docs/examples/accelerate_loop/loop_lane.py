"""A loop of one's own over accelerate's loaders, under test: which sequences it reads in a step that it resumes at."""

import contextlib
import os
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from contracts.spec import NotOffered, refuse
from contracts.stacks.kit import worlds
from contracts.stacks.kit.answering import version_of


class Loop:
    """Prepares a shuffled loader; resumed in the middle of an epoch, it skips what was read and continues."""

    name, package = "accelerate-loop", "accelerate"
    version = version_of("accelerate", "accelerate")
    offers = frozenset({"samples"})
    layouts = frozenset()
    labels: ClassVar = {"samples": "one rank's loader; where there are several, on torch's fake backend"}

    def samples(self, recipe, step, rank, dp):
        if recipe.data.path is None:
            raise NotOffered("has no text of its own; give one", "adapter")
        if step < 1 or dp < 1 or recipe.batch.total % dp or not 0 <= rank < dp:
            raise NotOffered("steps count from 1, and ranks have equal shares", "stack")
        try:
            size = (Path(recipe.data.path).stat().st_size - 1) // recipe.seq_length
        except OSError as error:
            raise refuse("data.path", recipe.data.path, f"cannot be read: {error.strerror}", "give a text") from error
        if size % recipe.batch.total:
            raise NotOffered("its loop begins a step with each epoch", "stack")
        epoch, done = divmod(step - 1, size // recipe.batch.total)
        with one_of(dp, rank):
            set_seed(recipe.seed)
            config = DataLoaderConfiguration(use_seedable_sampler=True, split_batches=True)
            accelerator = Accelerator(cpu=True, dataloader_config=config)
            loader = accelerator.prepare(DataLoader(range(size), batch_size=recipe.batch.total, shuffle=True))
            loader.set_epoch(epoch)
            return tuple(next(iter(skip_first_batches(loader, done))).tolist())


@contextlib.contextmanager
def one_of(world, rank):
    """One rank of a world as accelerate sees it; what it remembers of the last one is forgotten."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    threads = torch.get_num_threads()
    with contextlib.ExitStack() as held:
        held.callback(torch.set_num_threads, threads)  # accelerate takes fewer where ranks share a machine
        if world > 1:
            held.enter_context(patch.dict(os.environ, {name: str(each) for name, each in said.items()}))
            held.enter_context(worlds.pretended(world, rank))
        yield

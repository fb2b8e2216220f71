"""The order in which transformers' Trainer reads a data set: its own sampler, and accelerate's shares of the ranks."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from contracts.spec import Execution, Recipe, refuse
from contracts.stacks.kit import worlds
from contracts.stacks.transformers import shims
from contracts.stacks.transformers.configuration import decline
from contracts.stacks.transformers.training import alone


def samples(recipe: Recipe, step: int, rank: int, dp: int) -> tuple[int, ...]:
    """The ids that a rank's loader gives in a step, from a data set with the ids of the recipe's sequences.

    Raises:
        Refused: for data that cannot be read.
        NotOffered: for a step that reaches over the end of an epoch, and for shares that it cannot be given.
    """
    decline({
        "stack": {
            "its Trainer is given the rows of a device, and a step has the rows of all devices": dp < 1
            or recipe.batch.total % dp or not 0 <= rank < dp,
            "its Trainer counts the steps itself, from 1": step < 1,
        },
        "adapter": {"it has no text of its own; give one": recipe.data.path is None},
    })  # fmt: skip
    size = _sequences(recipe)
    decline({"stack": {"a step of its Trainer ends with the epoch": size % recipe.batch.total}})
    epoch, place = divmod(step - 1, size // recipe.batch.total)
    with _one_of(dp, rank), shims.quiet(), tempfile.TemporaryDirectory(prefix="transformers-") as folder:
        trainer = Trainer(
            model=torch.nn.Linear(1, 1),
            args=TrainingArguments(
                output_dir=folder, use_cpu=True, seed=recipe.seed, report_to=[], disable_tqdm=True,
                per_device_train_batch_size=recipe.batch.total // dp, dataloader_pin_memory=False,
                remove_unused_columns=False,
            ),
            train_dataset=list(range(size)),
            data_collator=torch.tensor,
        )  # fmt: skip
        loader = trainer.get_train_dataloader()
        loader.set_epoch(epoch)  # as its `train` does
        ids_B: Tensor = next(islice(loader, place, None))
    return tuple(ids_B.tolist())


def _sequences(recipe: Recipe) -> int:
    try:
        return (Path(str(recipe.data.path)).stat().st_size - 1) // recipe.seq_length
    except OSError as error:
        raise refuse("data.path", recipe.data.path, f"cannot be read: {error.strerror}", "give a text") from error


@contextlib.contextmanager
def _one_of(world: int, rank: int) -> Iterator[None]:
    """One rank of a world as accelerate sees it, on torch's fake backend; it would take fewer threads there."""
    threads = torch.get_num_threads()
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    with contextlib.ExitStack() as held:
        if world > 1:
            held.enter_context(patch.dict(os.environ, {name: str(each) for name, each in said.items()}))
            held.enter_context(worlds.pretended(world, rank))
            held.callback(torch.set_num_threads, threads)
        held.enter_context(alone(Execution(world=world)))
        yield

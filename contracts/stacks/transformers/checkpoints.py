"""The checkpoints of transformers' Trainer by themselves, in one process: what it writes, finds, loads and removes.

A state of the law is handed to it as its own: tensors in a model, moments in an optimizer, counters in a callback that
it exports. A load is its own `train`, resumed after its last step.
"""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import ConstantLR
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState, PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from contracts.instruments import numerics
from contracts.spec import Arrays, Loaded, Recipe, Snapshot, WriteFault, Written
from contracts.stacks.kit.checkpoints import changed, module_with
from contracts.stacks.transformers import releases, shims
from contracts.stacks.transformers.configuration import decline
from contracts.stacks.transformers.training import Model, alone

ERRORS = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    AttributeError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""What it raises where it does not save or load."""
OF_OPTIMIZER, OF_MODEL = "optimizer/", "weights/"


class Counters(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Counters that are saved with the state of its Trainer."""

    def __init__(self, position: dict[str, int], recipe: str) -> None:
        self.position, self.recipe = position, recipe

    def state(self) -> dict[str, Any]:
        return {"args": {"position": self.position, "recipe": self.recipe}, "attributes": {}}


class Kept:
    """One state, and a Trainer that has it."""

    def __init__(self, folder: str, state: Snapshot, step: int | None = None) -> None:
        tensors = numerics.tensors(state.tensors)
        self.names = tuple(tensors)
        weights = {name: each for name, each in tensors.items() if not name.startswith(OF_OPTIMIZER)}
        self.model = module_with(weights, PreTrainedModel(releases.configuration_class()()))
        self.anchor = self.model.anchor = torch.nn.Parameter(torch.zeros(1))  # a model has a weight that is trained
        trained = [each for name, each in self.model.named_parameters() if name.startswith(OF_MODEL)]
        optimizer = torch.optim.SGD([self.anchor, *trained])
        optimizer.state[self.anchor] = {n: each.clone() for n, each in tensors.items() if n.startswith(OF_OPTIMIZER)}
        self.optimizer, self.step = optimizer, state.step
        self.trainer = Trainer(
            model=self.model,
            args=TrainingArguments(
                output_dir=folder, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
                max_steps=step or 1, per_device_train_batch_size=1, restore_callback_states_from_checkpoint=True,
            ),
            train_dataset=[{}],
            callbacks=[Counters(dict(state.position), state.recipe)],
            optimizers=(optimizer, ConstantLR(optimizer)),
        )  # fmt: skip
        self.trainer.remove_callback(PrinterCallback)

    def counters(self) -> Counters:
        (found,) = (each for each in self.trainer.callback_handler.callbacks if isinstance(each, Counters))
        return found

    def state(self) -> Snapshot:
        held = {**self.model.state_dict(), **self.optimizer.state[self.anchor]}
        tensors = numerics.arrays({name: held[name] for name in self.names})
        return Snapshot(step=self.step, tensors=tensors, position=dict(self.counters().position))


def write_checkpoint(folder: str, state: Snapshot, file_bytes: int, fault: WriteFault | None) -> Written:
    """A save of its Trainer. It writes one file of tensors, however large.

    Private in transformers: nothing public saves all that a run resumes from. Seen in 5.23.0.
    """

    def write() -> None:
        with shims.quiet(), alone():
            kept = Kept(folder, state)
            kept.trainer.state.global_step, kept.trainer.state.train_batch_size = state.step, 1
            kept.trainer._save_checkpoint(kept.model, None)

    return changed(write, fault, ERRORS)


def latest_checkpoint(folder: str) -> int | None:
    """The step of the checkpoint that its Trainer would resume from."""
    found = get_last_checkpoint(folder)
    return None if found is None else int(Path(found).name.rpartition("-")[2])


def load_checkpoint(folder: str, step: int | None, target: Snapshot) -> Loaded:
    """A run of its Trainer that resumes and has no step left.

    Raises:
        NotOffered: if only the recipe differs, which it does not compare.
    """
    steps = latest_checkpoint(folder) if step is None else step
    with shims.quiet(), alone():
        kept = Kept(folder, target, steps)
        try:
            kept.trainer.train(resume_from_checkpoint=True if step is None else f"{folder}/checkpoint-{step}")
        except ERRORS as error:
            return Loaded(state=kept.state(), refused=f"{type(error).__name__}: {error}")
        kept.step = kept.trainer.state.global_step
    differs = kept.counters().recipe != target.recipe
    decline({"stack": {"its Trainer compares no configuration with a checkpoint's": differs}})
    return Loaded(state=kept.state())


def retire_checkpoints(folder: str, keep: int, durable: frozenset[int], fault: WriteFault | None) -> Written:
    """What its Trainer removes after a save.

    Raises:
        NotOffered: for a durable copy, of which it knows nothing, and where a limit means that nothing is removed.
    """
    names = [each.name.removeprefix("checkpoint-") for each in Path(folder).glob("checkpoint-*")]
    decline({"stack": {
        "a limit of 0 or less removes nothing, it says": keep <= 0,
        "it knows no copy of its checkpoints that another process makes": not {int(n) for n in names if n.isdecimal()}
        <= durable,
    }})  # fmt: skip
    return changed(lambda: _rotated(folder, keep), fault, ERRORS)


def export_model(folder: str, recipe: Recipe, weights: Arrays, files: int) -> str:
    """What its `save_pretrained` writes, with files of about as many bytes."""
    model = Model(recipe, "run_model")
    model.put(weights, {})
    size = sum(len(each.data) for each in weights.values())
    with shims.quiet():
        model.module.save_pretrained(folder, max_shard_size=-(-size // files) if files > 1 else 2 * size)
    return folder


def _rotated(folder: str, keep: int) -> None:
    rotate = releases.found("trainer_utils", "rotate_checkpoints")
    if rotate is not None:
        rotate(output_dir=folder, save_total_limit=keep, use_mtime=True)
        return
    with shims.quiet(), alone():  # up to 4.57 it is a method of its Trainer
        given = TrainingArguments(output_dir=folder, use_cpu=True, report_to=[], save_total_limit=keep)
        Trainer(model=torch.nn.Linear(1, 1), args=given)._rotate_checkpoints(use_mtime=True, output_dir=folder)

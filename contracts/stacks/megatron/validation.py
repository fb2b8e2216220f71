"""The loss of other batches between two steps: `evaluate` of Megatron's training script, which 0.17 and later ship."""

import argparse
import contextlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from contracts.stacks.megatron.checkpoint_store import defaults, training
from contracts.stacks.megatron.shims import mcore

Rows = Mapping[str, Tensor]


class Trains(Protocol):
    """A model under training: its configuration and its chunks as they are trained."""

    config: Any
    chunks: list[Any]


def validated(trainer: Trains, batches: list[Rows], forward: Callable[[Rows, Any], tuple[Tensor, Tensor]]) -> float:
    """The mean loss over the labels that count, on the ranks of the current groups.

    All batches of its evaluation have one size, so these are cut into the largest pieces that they have in common.

    Args:
        batches: this rank's share of each, of one length.
        forward: the loss of each token of a batch, and whether its label counts.
    """
    rows = math.gcd(*(len(each["tokens"]) for each in batches))
    pieces = [
        {name: each[name][start : start + rows] for name in each}
        for each in batches
        for start in range(0, len(each["tokens"]), rows)
    ]
    state = mcore("parallel_state")
    ranks = state.get_data_parallel_world_size()
    args = argparse.Namespace(**vars(defaults()))
    args.eval_global_batch_size, args.eval_micro_batch_size, args.eval_iters = rows * ranks, rows, len(pieces)
    args.data_parallel_size, args.gtp_weight_remat_size, args.seq_length = ranks, 1, pieces[0]["tokens"].shape[1]
    args.consumed_valid_samples = 0

    def step(source: Iterator[Rows], model: Any, *_: Any) -> Any:
        losses_BT, counts_BT = forward(next(source), model)
        return losses_BT, lambda told_BT: _summed(told_BT, counts_BT)

    sources = [iter(pieces) for _ in trainer.chunks]
    with _globals(args), contextlib.redirect_stdout(io.StringIO()):
        losses, *_ = training("training").evaluate(
            step, sources if len(sources) > 1 else sources[0], trainer.chunks, None, trainer.config
        )
    trainer.config.timers = None  # it leaves the script's, which are gone
    told = losses.get("lm loss")  # stages before the last have none
    mine = torch.zeros(1) if told is None else told.reshape(1).to("cpu", copy=True)
    torch.distributed.all_reduce(mine, torch.distributed.ReduceOp.MAX, state.get_pipeline_model_parallel_group())
    return float(mine)


def _summed(losses_BT: Tensor, counts_BT: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """As the loss function of its pretraining script."""
    total, tokens = (losses_BT * counts_BT).sum(), counts_BT.sum().to(torch.int)
    return total, tokens, {"lm loss": torch.stack([total.detach(), tokens.to(total.dtype)])}


@contextlib.contextmanager
def _globals(args: argparse.Namespace) -> Iterator[None]:
    """The script's globals during a call: its arguments, timers and state of repeated iterations."""
    variables, rerun = training("global_vars"), mcore("rerun_state_machine")
    rerun.destroy_rerun_state_machine()  # a save or a load makes one where there is none
    try:
        variables.set_args(args)
        variables._set_timers(args)  # 0.19.2 has no other way to them than its whole initialisation
        rerun.initialize_rerun_state_machine()
        yield
    finally:
        rerun.destroy_rerun_state_machine()
        variables.set_args(None)
        variables._GLOBAL_TIMERS = None

"""Megatron's distributed optimizer: each data-parallel rank moves one piece of the weights and gathers the others.

Gradients are reduced while the backward pass runs and weights gathered while the next forward pass runs, bucket by
bucket, as its training script has it with `--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.spec import NotOffered
from contracts.stacks.megatron.shims import Shim, mcore

BUCKET = 2048
"""Elements of a bucket where two ranks share data. Elsewhere it is Megatron's default, forty million, which holds a
whole small model: what several buckets do to a checkpoint would hide all else that could be wrong with it."""
LABEL = (
    f"; its distributed optimizer, overlapped, with two data-parallel ranks in buckets of {BUCKET} elements, over "
    "torch's AdamW in place of Transformer Engine's Adam, which is substituted"
)


def options(ranks: int) -> dict[str, Any]:
    """The further configuration of its data-parallel wrapper on so many data-parallel ranks."""
    buckets = {"bucket_size": BUCKET} if ranks == 2 else {}
    return {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True, **buckets}


class FusedAdam(torch.optim.AdamW):
    """torch's AdamW, which counts steps by group as Transformer Engine's Adam of this name does.

    Over torch's own the distributed optimizer loads no checkpoint into a new run: it asserts a count by tensor, which a
    new run has not.
    """

    def __init__(self, params: Any, *, adam_w_mode: bool, **named: Any) -> None:
        if not adam_w_mode:
            raise NotOffered("Megatron-Core: a weight decay within the gradient has no stand-in here")
        super().__init__(params, **named)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's own wants a count of every tensor

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for tensor in group["params"]:
                if held := self.state.get(tensor):  # counts and moments are made in the first step
                    held["step"] = torch.tensor(float(group.get("step", 0)))
        told = super().step(closure)
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
            for tensor in group["params"]:
                self.state.get(tensor, {}).pop("step", None)
        return told


_ADAM = "Transformer Engine's Adam, which is CUDA's: torch's AdamW with a count by group"
_MODULE = "megatron.core.optimizer.distrib_optimizer"
SHIMS = (
    Shim(at="megatron.core.optimizer:Adam", put=FusedAdam, why=_ADAM),
    Shim(at="megatron.core.optimizer:USING_PYTORCH_OPTIMIZER", put=False, why=_ADAM),
    Shim(at=f"{_MODULE}:Adam", put=FusedAdam, why=_ADAM),
    Shim(at=f"{_MODULE}:HAVE_APEX_OR_TE", put=True, why=_ADAM),
    Shim(at=f"{_MODULE}:USING_TE_OPTIMIZER", put=True, why=_ADAM),
)


def overlapped(config: Any, chunks: list[Any]) -> None:
    """Have the schedules reduce and gather as the training script asks.

    Its first step gathers nothing: weights are equal before it.
    """
    config.no_sync_func = _each(chunk.no_sync for chunk in chunks)
    config.grad_sync_func = _each(chunk.start_grad_sync for chunk in chunks)
    for chunk in chunks:
        chunk.disable_forward_pre_hook(param_sync=False)


def gather_from_now_on(config: Any, chunks: list[Any]) -> None:
    """What the training script does after the first step; after a later one nothing."""
    if config.param_sync_func is not None:
        return
    config.param_sync_func = _each(chunk.start_param_sync for chunk in chunks)
    for chunk in chunks:
        chunk.enable_forward_pre_hook()


@contextlib.contextmanager
def weights_gathered(chunks: list[Any]) -> Iterator[None]:
    """The training script's frame around an evaluation and a checkpoint: every rank has all weights.

    Chunks that gather nothing, or nothing yet, stay as they are.
    """
    gathering = [chunk for chunk in chunks if getattr(chunk, "remove_forward_pre_hook_handles", None)]
    for chunk in gathering:
        chunk.disable_forward_pre_hook()
    try:
        yield
    finally:
        for chunk in gathering:
            chunk.enable_forward_pre_hook()


def _each(functions: Iterator[Any]) -> Any:
    first, *others = functions
    return [first, *others] if others else first


@dataclass(frozen=True)
class Piece:
    """What this rank moves of a tensor: elements `start` to `stop` of the flat one.

    Args:
        moved: the flat tensor that the torch optimizer moves.
    """

    start: int
    stop: int
    moved: Tensor

    def of(self, value: Tensor) -> Tensor:
        return value.detach().flatten()[self.start : self.stop]


def links(optimizer: Any) -> list[Any]:
    """Megatron's optimizers of one kind each: links of a chain, and of what is chained in it."""
    chained = getattr(optimizer, "chained_optimizers", None)
    return [optimizer] if chained is None else [link for each in chained for link in links(each)]


class Pieces:
    """The pieces of a rank's tensors that its optimizers move, by index of the tensor."""

    def __init__(self, optimizer: Any, tensors: list[Any]) -> None:
        self._optimizers = [each for each in links(optimizer) if not each.is_stub_optimizer]
        self._tensors = tensors

    def _held(self, optimizer: Any) -> dict[int, Piece]:
        """As the optimizer finds them itself when it writes a checkpoint; a layer-wise one has whole matrices."""
        found = {}
        byte_wise = hasattr(optimizer, "model_param_gbuf_map")
        whole = {id(each) for group in optimizer.optimizer.param_groups for each in group["params"]}
        for n, tensor in enumerate(self._tensors):
            if byte_wise and tensor in optimizer.model_param_gbuf_map:
                at = optimizer._get_model_param_range_map(tensor)["param"]
                group, place = optimizer.model_param_group_index_map[tensor]
                moved = optimizer.optimizer.param_groups[group]["params"][place]
                found[n] = Piece(at.start, at.end, moved)
            elif not byte_wise and id(main := getattr(tensor, "main_param", tensor)) in whole:
                found[n] = Piece(0, tensor.numel(), main)
        return found

    def mine(self) -> dict[int, Piece]:
        return {n: piece for each in self._optimizers for n, piece in self._held(each).items()}

    def put(self, values: Mapping[int, Tensor]) -> None:
        """Give this rank's pieces of whole tensors to the optimizer."""
        with torch.no_grad():
            for n, piece in self.mine().items():
                if n in values:
                    piece.moved.copy_(piece.of(values[n]).view_as(piece.moved))

    def whole(self, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Tensors put together from the pieces of the ranks that share each.

        Args:
            values: by index of a tensor, this rank's flat piece of a value of that tensor's form.
        """
        state = mcore("parallel_state")
        groups = (state.get_data_parallel_group(with_context_parallel=True), state.get_expert_data_parallel_group())
        found: dict[int, Tensor] = {}
        for group, expert in zip(groups, (False, True), strict=True):
            of_group = [n for n, each in enumerate(self._tensors) if expert is not getattr(each, "allreduce", True)]
            mine = {n: values[n].detach().flatten().cpu() for n in self.mine().keys() & {*of_group} if n in values}
            every: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(every, mine, group=group)
            for n in sorted(set().union(*every)):
                flat = torch.cat([rank[n] for rank in every if n in rank])
                found[n] = flat.reshape(self._tensors[n].shape)
        return found

"""The losses of Megatron's routers and prediction heads: as they record them, and as its training reports them."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from contracts.instruments import traffic
from contracts.stacks.megatron.model import Plan
from contracts.stacks.megatron.shims import Shim, mcore

NAMES = {"seq_load_balancing_loss": "aux", "z_loss": "z"}
"""Megatron's names of the losses of a router, and ours."""


def clear_losses() -> None:
    """Clear the losses that routers and prediction heads recorded."""
    _of_heads().clear()
    try:
        mcore("transformer.moe.moe_logging").destroy_moe_metrics_tracker()
    except ModuleNotFoundError:
        _kept().clear()


def noted_losses() -> dict[str, Tensor]:
    """Losses by layer as the routers and the prediction heads of this process recorded them, before their weights; only
    those with a weight. The loss of prediction is their mean over depths.

    0.16 keeps those of routers in a dictionary of parallel_state, 0.19 in a tracker object.
    """
    try:
        metrics = mcore("transformer.moe.moe_logging").get_moe_metrics_tracker().metrics
        noted = {name: each.values for name, each in metrics.items()}
    except ModuleNotFoundError:
        noted = {name: each["values"] for name, each in _kept().items()}
    found = {ours: noted[theirs] for theirs, ours in NAMES.items() if theirs in noted}
    ahead = _of_heads().get("loss_values", _of_heads().get("values"))  # the latter up to 0.18
    return found if ahead is None else found | {"mtp": ahead / len(ahead)}


def _of_heads() -> dict[str, Any]:
    found: dict[str, Any] = mcore("transformer.multi_token_prediction").MTPLossLoggingHelper.tracker
    return found


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = mcore("transformer.moe.moe_utils").get_moe_layer_wise_logging_tracker()
    return found


def reported_losses(plan: Plan, microbatches: int) -> dict[str, float]:
    """The losses of routers as its training reports them after a step, summed over layers: it reports their mean over
    the layers with experts and those of prediction, and every rank takes part.

    0.16 has a function, 0.19 a method of a tracker.
    """
    moe, mtp = plan.recipe.moe, plan.recipe.mtp
    if moe is None:
        return {}
    weights = {"aux": moe.aux_loss, "z": moe.z_loss}
    routed = [1] * plan.layers if plan.paired else [int(letter == "E") for letter in plan.letters]
    ahead = mtp.depth if mtp else 0
    told: dict[str, Any] = {}
    try:
        report = mcore("transformer.moe.moe_logging").get_moe_metrics_tracker().report
    except ModuleNotFoundError:
        report = mcore("transformer.moe.moe_utils").track_moe_metrics
    with traffic.unrecorded():
        report(
            loss_scale=1 / microbatches, iteration=1, writer=None, force_initialize=True,
            track_names=[theirs for theirs, ours in NAMES.items() if weights[ours]], num_layers=plan.layers,
            moe_layer_freq=routed, mtp_num_layers=ahead or None, total_loss_dict=told,
        )  # fmt: skip
    return {NAMES[theirs]: float(mean) * (sum(routed) + ahead) for theirs, mean in told.items() if theirs in NAMES}


_ALL_REDUCE = dist.all_reduce


def _all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """torch's, and for a mean its sum, divided."""
    if op != dist.ReduceOp.AVG or async_op:
        return _ALL_REDUCE(tensor, op, group, async_op)
    _ALL_REDUCE(tensor, dist.ReduceOp.SUM, group)
    tensor /= dist.get_world_size(group)
    return None


SHIMS = (Shim(at="torch.distributed:all_reduce", put=_all_reduce, why="means over ranks: gloo only adds"),)
LABEL = "; means over ranks are sums, divided: gloo only adds"

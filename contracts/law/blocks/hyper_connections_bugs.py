"""Hyper-connections that read, write or mix the streams wrongly."""

import torch

from contracts.law._bugs.numeric import Layer, Model, broken
from contracts.stacks.reference.model.blocks.hyper_connections import ROUNDS, HyperConnections


@broken(HyperConnections, "write", "BLK-06m[three-streams]: logits differs")
def mixes_streams_transposed(write, self, streams_BTND, y_BTD, post_BTN, res_BTNN):
    """H_res is applied transposed: as doubly stochastic as before, and another model."""
    return write(self, streams_BTND, y_BTD, post_BTN, res_BTNN.mT)


@broken(HyperConnections, "__init__", "BLK-06m[wide-eps]: logits differs")
def norms_streams_by_the_usual_epsilon(init, self, recipe, parts):
    """The norm of the streams has no weight, is no module, and does not know the recipe's epsilon."""
    init(self, recipe, parts)
    self.eps = 1e-5


@broken(HyperConnections, "mixing", "BLK-06m[two-streams]: logits differs")
def sinkhorn_of_one_round(mixing, self, logits_BTNN):
    """Sinkhorn runs one round instead of twenty: columns sum to 1, rows do not."""
    matrix = logits_BTNN.softmax(-1)
    return matrix / matrix.sum(-2, keepdim=True)


@broken(HyperConnections, "forward", "BLK-06m[under-prediction-heads]: logits differs")
def writes_half(forward, self, streams_BTND):
    """h_post lacks its factor of 2."""
    pre_BTN, post_BTN, res_BTNN = forward(self, streams_BTND)
    return pre_BTN, post_BTN / 2, res_BTNN


@broken(HyperConnections, "maps", "BLK-06m[three-streams]: logits differs")
def maps_of_the_whole_row(maps, self, streams_BTND):
    """One map per row, computed from the mean of all its tokens, later ones included."""
    return maps(self, streams_BTND.mean(1, keepdim=True)).expand(-1, streams_BTND.shape[1], -1)


@broken(HyperConnections, "mixing", "BLK-06m[three-streams]: the gradient of layers.1.streams.alpha differs")
def sinkhorn_without_gradient(mixing, self, logits_BTNN):
    """Sinkhorn runs without gradient, so the logits of H_res do not train."""
    with torch.no_grad():
        return mixing(self, logits_BTNN)


@broken(HyperConnections, "mixing", "BLK-06n[three-streams]: the logits of a plain residual differs")
def mixes_by_a_softmax(mixing, self, logits_BTNN):
    """H_res is a softmax: rows sum to 1 and columns do not, so the residual grows or fades."""
    return logits_BTNN.softmax(-1)


@broken(Layer, "forward", "BLK-06n[four-streams]: the logits of a plain residual differs")
def plain_layers_read_one_stream(forward, self, x, packing):
    """A layer without maps reads stream 0 instead of the mean."""
    if self.streams is not None or x.dim() == 3:
        return forward(self, x, packing)
    out = self.branch(x[..., 0, :], packing)
    return out._replace(y_BTD=x + out.y_BTD.unsqueeze(-2))


@broken(Layer, "forward", "BLK-06n[every-stream-alike]: the logits of a plain residual differs")
def adds_the_streams_twice(forward, self, x, packing):
    """A layer without maps adds the residual a second time."""
    out = forward(self, x, packing)
    return out if self.streams is not None or x.dim() == 3 else out._replace(y_BTD=out.y_BTD + x)


@broken(Model, "narrow", "BLK-06o[two-streams]: the logits with permuted streams differs")
def ends_on_the_last_stream(narrow, self, x):
    """The output projection reads one stream instead of their mean."""
    return x if x.dim() == 3 else x[..., -1, :]


@broken(HyperConnections, "mixing", "BLK-06o[three-streams]: the logits with permuted streams differs")
def mixes_by_rank(mixing, self, logits_BTNN):
    """A later stream also receives what earlier streams received, so the order of streams matters."""
    first = logits_BTNN.flatten(-2).softmax(-1).view_as(logits_BTNN)
    rest = first.cumsum(-1)
    return rest / rest.sum(-2, keepdim=True)


def _rounded(value):
    """A value rounded to bfloat16; autocast does not touch one in float64."""
    return value if value.dtype == torch.float64 else value.bfloat16().to(value.dtype)


@broken(HyperConnections, "__init__", "BLK-06w[one-layer]: logits under bfloat16 are off by")
def norms_streams_in_bfloat16(init, self, recipe, parts):
    """The norm in front of the maps runs in the dtype of the streams."""
    init(self, recipe, parts)
    self.phi.register_forward_pre_hook(lambda _, given: (_rounded(given[0]),))


@broken(HyperConnections, "__init__", "BLK-06w[two-layers]: logits under bfloat16 are off by")
def projects_streams_in_bfloat16(init, self, recipe, parts):
    """The projection of the streams to their maps runs under autocast."""
    init(self, recipe, parts)
    self.phi.register_forward_hook(lambda _, __, mapped: _rounded(mapped))


@broken(HyperConnections, "mixing", "BLK-06n[saturated]: the logits of a plain residual")
def sinkhorn_overflows(mixing, self, logits_BTNN):
    """Sinkhorn begins with exp of the logits as they are (Megatron-LM's `native_sinkhorn`)."""
    matrix = logits_BTNN.exp()
    for _ in range(ROUNDS):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(-2, keepdim=True)
    return matrix


@broken(HyperConnections, "mixing", "BLK-06n[saturated]: the logits of a plain residual")
def sinkhorn_loses_a_column(mixing, self, logits_BTNN):
    """Over-correction: rows are shifted by their largest logit, and a column of zeros is divided by a small number in
    place of its sum (Megatron-LM #3828)."""
    matrix = (logits_BTNN - logits_BTNN.amax(-1, keepdim=True)).exp()
    for _ in range(ROUNDS):
        matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-6)
        matrix = matrix / matrix.sum(-2, keepdim=True).clamp(min=1e-6)
    return matrix

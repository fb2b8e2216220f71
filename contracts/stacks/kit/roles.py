"""The role of each parameter of the model, read off its name."""

from contracts.spec import Role

_STATE_SPACE = frozenset({"A_log", "D", "dt_bias"})


def role_of(name: str) -> Role:
    """The role of a parameter or buffer. A matrix is what nothing below claims: Muon may move it."""
    path = name.split(".")
    owner, last = path[-2], path[-1]
    if path[0] in ("embedding", "head"):
        return "embedding" if path[0] == "embedding" else "head"
    if "streams" in path:
        return "mixing"
    if owner == "router":
        return "bias" if last.endswith("bias") else "router"
    if owner == "experts":
        return "bias" if last.startswith("b") else "expert"
    if last in _STATE_SPACE:
        return "ssm"
    if last == "bias" or last.endswith("_bias"):
        return "bias"
    if owner.startswith("conv"):
        return "conv"
    return "norm" if owner == "norm" or owner.endswith("_norm") else "matrix"


def of_experts(name: str) -> bool:
    """Whether a parameter has a part for each expert: their matrices and their biases."""
    return name.split(".")[-2] == "experts"


def layer_of(name: str) -> int | None:
    """The number of a parameter's layer (0-based); None for embeddings, head, final norm and prediction heads."""
    path = name.split(".")
    return int(path[1]) if path[0] == "layers" else None

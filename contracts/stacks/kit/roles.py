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
        return "bias" if last == "bias" else "router"
    if owner == "experts":
        return "expert"
    if last in _STATE_SPACE:
        return "ssm"
    if last == "bias" or last.endswith("_bias"):
        return "bias"
    if owner.startswith("conv"):
        return "conv"
    return "norm" if owner == "norm" or owner.endswith("_norm") else "matrix"


def layer_of(name: str) -> int | None:
    """The number of a parameter's layer (0-based); None for embeddings, head, final norm and prediction heads."""
    path = name.split(".")
    return int(path[1]) if path[0] == "layers" else None

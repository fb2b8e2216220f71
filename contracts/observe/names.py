"""Canonical names of parameters and modules: the same whatever wraps the model."""

WRAPPERS = frozenset(
    {
        "_fsdp_wrapped_module",  # FSDP1
        "_checkpoint_wrapped_module",  # activation checkpointing
        "_orig_mod",  # torch.compile
        "_wrapped_module",
    }
)


def canonical(name: str, *, inside: bool = False) -> str:
    """A name without the parts that wrappers add.

    Args:
        name: as `named_parameters` or `named_modules` of the root gives it.
        inside: whether the root is a wrapper, such as DDP, that keeps the model, or another wrapper, as `module`.
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while inside and parts[:1] == ["module"]:
        del parts[0]
    return ".".join(parts)

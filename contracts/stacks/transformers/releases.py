"""What versions of transformers name or hold otherwise, looked up in the installed one. Nothing here computes."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from contracts.stacks.kit.answering import version_of


@functools.cache
def found(module: str, name: str) -> Any:
    """A name of one of its modules, or None where it has neither."""
    try:
        return getattr(importlib.import_module(f"transformers.{module}"), name, None)
    except ImportError:
        return None


def version() -> str:
    """The version that is imported."""
    return version_of("transformers", "transformers") or ""


def has_rope_parameters() -> bool:
    """Whether a configuration has one dictionary about rope; up to 4.57 it has `rope_theta` and others."""
    return found("modeling_rope_utils", "RopeParameters") is not None


def layer_types() -> Mapping[str, str]:
    """What it calls our letters where a configuration lists its layers; up to 5.10 a scan was `mamba`."""
    renamed = found("configuration_utils", "remap_legacy_layer_types") is not None
    return {"A": "full_attention", "M": "linear_attention"} if renamed else {"A": "attention", "M": "mamba"}


def taken(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Of these arguments, those that a function has by name."""
    return {name: each for name, each in named.items() if name in inspect.signature(function).parameters}


def configuration_class() -> Any:
    """The base of its configurations, whose name has a capital T more since 5.0."""
    return found("configuration_utils", "PreTrainedConfig") or found("configuration_utils", "PretrainedConfig")

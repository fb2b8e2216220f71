"""How checks read an answer: layer numbers, an argv as flags, a refusal by its fields, presets by a word in a name."""

import re
from collections.abc import Iterable, Iterator

from contracts.law._support.launches import flag_occurrences
from contracts.spec import Launch, LayerNumbers, NotOffered, Recipe, Refused, Stack


def one_based(layers: LayerNumbers) -> tuple[int, ...]:
    """Layer numbers counted from one, whichever base the answer uses."""
    return tuple(number + 1 - layers.base for number in layers.numbers)


def flags_of(launch: Launch) -> dict[str, tuple[str, ...]]:
    """Flag → its values, in the order of the argv. Values of a repeated flag are joined."""
    flags: dict[str, tuple[str, ...]] = {}
    for flag, values in flag_occurrences(launch.argv):
        flags[flag] = (*flags.get(flag, ()), *values)
    return flags


def megatron_flags(launch: Launch) -> dict[str, tuple[str, ...]]:
    """`flags_of` a launch whose argv is Megatron's.

    Raises:
        NotOffered: when it is another launcher's, whose flags say the same in other words.
    """
    if launch.launcher != "megatron-core":
        raise NotOffered(f"launches {launch.launcher}, not megatron-core", "case")
    return flags_of(launch)


def names_field(refused: Refused, fields: Iterable[str]) -> bool:
    """Whether a refusal names one of the fields, however it qualifies them (`recipe.kv_groups`, `override.kv_groups`).

    A field that is part of another counts at a dot only: `moe.experts` names `experts`, `experts_total` does not.
    """
    wanted = tuple(fields)
    return any(field == name or field.endswith(f".{name}") for field in refused.fields for name in wanted)


def presets_named(stack: Stack, word: str) -> Iterator[tuple[str, Recipe]]:
    """Every preset or alias with a word (a regular expression) in its name, and what it resolves to; "" matches all."""
    for name in stack.preset_names():
        if not word or re.search(f"(?:^|[_-]){word}(?=[_-]|$)", name):
            yield name, stack.preset(name, ())

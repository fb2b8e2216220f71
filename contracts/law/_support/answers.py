"""How checks read an answer: layer numbers, an argv as flags, presets by a word in a name, a refusal that must come and
its fields, and findings."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass

from contracts.law._support.launches import flag_occurrences
from contracts.spec import Launch, LayerNumbers, NotOffered, Recipe, Refused, Stack, shown
from contracts.spec.machine import Finding


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


def refusal_of(ask: Callable[..., object], *arguments: object) -> Refused:
    """The refusal that a question must give.

    Raises:
        AssertionError: when the stack accepted the input, with what it answered.
    """
    try:
        answer = ask(*arguments)
    except Refused as refused:
        return refused
    raise AssertionError(f"{', '.join(map(_named, arguments))} was accepted, expected a refusal; got {_named(answer)}")


def _named(value: object) -> str:
    """A value in a message: one of many fields by what it is, and of which recipe."""
    text, of = shown(value), getattr(value, "recipe", value)
    if not is_dataclass(value) or not text.endswith(" characters)"):
        return text
    return f"a {type(value).__name__} of {of.name}" if isinstance(of, Recipe) else f"a {type(value).__name__}"


def finding_on(findings: tuple[Finding, ...], field: str, *words: str) -> Finding:
    """The finding on a field that names every word; which of its parts says it is the stack's choice.

    `one or other` is either field: where two collide, both are to blame.

    Raises:
        AssertionError: when nothing was found, nothing on the field, or nothing with the words.
    """
    wanted = f"expected a finding on {field}" + (f" that names {', '.join(words)}" if words else "")
    assert findings, f"nothing was found, {wanted}"
    on_field = [finding for finding in findings if finding.field in field.split(" or ")]
    named = ", ".join(finding.field for finding in findings)
    assert on_field, f"found on {named} only, {wanted}"
    for finding in on_field:
        if all(word.lower() in str(finding).lower() for word in words):
            return finding
    raise AssertionError(f"{on_field[0]}: {wanted}")


def assert_no_findings(findings: tuple[Finding, ...]) -> None:
    """Require that nothing was found.

    Raises:
        AssertionError: with what was found.
    """
    assert not findings, f"found where all is well: {findings[0]}"

"""Single fields of a recipe, changed by text: `optim.lr=1e-4`. Used by the launch and by the trainer's command line."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any, cast

from contracts.spec import codec
from contracts.spec.errors import Refusals, Refused, refuse
from contracts.spec.recipe import Recipe


def apply(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """A recipe with the given fields replaced, and no other.

    Values are read as JSON where they are JSON (`4`, `1e-4`, `true`, `null`, `[1,2]`), else as text.

    Raises:
        Refused: unknown keys with the nearest known ones, values of another type, and relations that break; at once.
    """
    data = codec.encode(recipe)
    found = Refusals()
    known = keys(recipe)
    for key, text in changes.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3) or known
            found.add("override", key, "is not a field of a recipe", f"the nearest are {', '.join(near)}")
            continue
        owner: Any = data
        *path, last = key.split(".")
        for step in path:
            owner = owner[step]
        owner[last] = _read(text)
    try:
        changed = codec.decode(Recipe, data, name="override")
    except Refused as refused:
        found.extend(refused)
    found.raise_any()
    return changed


def keys(recipe: Recipe) -> list[str]:
    """Every key that can be overridden: the fields, and the fields of each feature that is on."""
    found = []
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        found.append(field.name)
        if dataclasses.is_dataclass(value):
            found += [f"{field.name}.{inner.name}" for inner in dataclasses.fields(value)]
    return found


def difference(base: Recipe, other: Recipe) -> dict[str, str]:
    """The overrides that make `other` out of `base`: `apply(base, difference(base, other)) == other`."""
    changes = {}
    for field in dataclasses.fields(base):
        one, two = getattr(base, field.name), getattr(other, field.name)
        if one == two:
            continue
        if dataclasses.is_dataclass(one) and dataclasses.is_dataclass(two):
            for inner in dataclasses.fields(one):
                if getattr(one, inner.name) != getattr(two, inner.name):
                    changes[f"{field.name}.{inner.name}"] = codec.dumps(getattr(two, inner.name))
        else:
            changes[field.name] = codec.dumps(two)
    return changes


def _read(text: str) -> object:
    try:
        return cast(object, json.loads(text, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return text


def _no_constant(text: str) -> float:
    raise refuse("override", text, "is not a number", "give a finite one")

"""Single fields of a recipe, changed by text: `optim.lr=1e-4`. Used by the launch and by the trainer's command line."""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, cast

from contracts.spec import Recipe, Refusals, Refused, codec


def apply(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """A recipe with the given fields replaced, and no other.

    Values are read as JSON where they are JSON (`4`, `1e-4`, `true`, `null`, `[1,2]`), else as text; `None` is null.

    Raises:
        Refused: unknown keys with the nearest known ones, values of another type, and relations that break; at once.
    """
    data = codec.encode(recipe)
    found = Refusals()
    known = keys(recipe)
    for key, text in changes.items():
        part, _, field = key.partition(".")
        if key not in known:
            found.add("override", key, *_unknown(recipe, part, field, known))
        elif field and part in changes:
            found.add("override", key, f"is also given as a whole, by {part}", "give the one or the other")
        elif field:
            data[part][field] = _read(text, codec.hints(cast(type, type(getattr(recipe, part))))[field])
        else:
            data[part] = _read(text, codec.hints(Recipe)[part])
    try:
        changed = codec.decode(Recipe, data, name="override")
    except Refused as refused:
        found.extend(refused)
    except OverflowError:
        found.add("override", ", ".join(changes), "holds a number beyond floating point", "give a smaller one")
    found.raise_any()
    return changed


def _unknown(recipe: Recipe, part: str, field: str, known: list[str]) -> tuple[str, str]:
    """Why a key is not known, and what to do: its feature is off, or it is misspelt."""
    if field and part in known and getattr(recipe, part) is None:
        return f"{part} is off in {recipe.name}", f"turn {part} on as a whole"
    key = f"{part}.{field}" if field else part
    near = difflib.get_close_matches(key, known, n=3) or known
    return "is not a field of a recipe", f"the nearest are {', '.join(near)}"


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
                value = getattr(two, inner.name)
                if getattr(one, inner.name) != value:
                    changes[f"{field.name}.{inner.name}"] = _written(
                        value, codec.hints(cast(type, type(two)))[inner.name]
                    )
        else:
            changes[field.name] = _written(two, codec.hints(Recipe)[field.name])
    return changes


def _written(value: object, kind: Any) -> str:
    """The text of a value: bare where a bare word is read back as the same string, else JSON."""
    bare = isinstance(value, str) and _read(value, kind) == value
    return value if bare and isinstance(value, str) else codec.dumps(value)


def _read(text: str, kind: Any) -> object:
    """The value a text stands for: JSON where that is of the field's type, else the text itself.

    So `data.path=7` is a path and `data.path=null` none, while `hidden=wide` stays a text and is refused as one. `None`
    is how Python prints nothing: a path of that name is written ./None.
    """
    if text == "None" and type(None) in typing.get_args(kind):
        return None
    try:
        value = cast(object, json.loads(text))
        return value if not _takes_text(kind) or value is None or isinstance(value, str) else text
    except (ValueError, RecursionError):
        return text


def _takes_text(kind: Any) -> bool:
    optional = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return kind is str or (optional and str in typing.get_args(kind))

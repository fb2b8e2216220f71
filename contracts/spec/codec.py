"""Frozen values to JSON and back: strict, lossless, and importable in any environment.

It does not use pydantic for two reasons. The Megatron worker and a user's twenty-line adapter run in environments that
may have only the standard library. And all refusals are raised at once.

A value is built from dataclasses, `tuple`, `frozenset[str]`, `Mapping[str, T]`, `Mapping[int, T]` (whose keys are
digits in JSON), `Literal`, `T | None`, the JSON scalars and `bytes`, which are base64 in JSON. Unknown keys, missing
keys and values of another type are refused with their path. A `bool` is not an `int`, an `int` is not a `str`, and JSON
has no NaN. A field of type `Real` may hold NaN and infinities; their JSON form is one of the texts "NaN", "Infinity",
"-Infinity".
"""

import base64
import collections.abc
import dataclasses
import functools
import itertools
import json
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, cast

from contracts.spec.errors import Refusals, Refused, refuse

T = TypeVar("T")
_MAPPINGS = (dict, collections.abc.Mapping)
_TUPLES, _SETS, _DICTS = (tuple, list), (frozenset, set), (dict, collections.OrderedDict)
_PLAIN = frozenset({str, int, bool})  # the most frequent types, with the same form in JSON: checked first

Real = Annotated[float, "NaN and infinities are values of it"]
"""A measured number, which may be NaN or infinite. A plain `float` is finite, so that comparisons mean something."""
_UNBOUNDED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: object) -> Any:
    """The JSON form of a value: dataclasses become objects, tuples lists, frozensets sorted lists."""
    return _encode(value, real=False)


def _encode(value: object, *, real: bool) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        reals = _reals(type(value))
        return {name: _encode(getattr(value, name), real=name in reals) for name in _fields(type(value))}
    if isinstance(value, collections.abc.Mapping):
        return {str(key): _encode(item, real=real) for key, item in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(_encode(item, real=real) for item in value)
    if isinstance(value, (tuple, list)):
        return [_encode(item, real=real) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if real:
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        raise refuse("value", value, "JSON has no such number", "record why the number is missing instead")
    if isinstance(value, (bool, int, float, str)):
        return value
    raise refuse("value", value, f"a {type(value).__name__} has no JSON form", "use a dataclass of scalars")


def dumps(value: object) -> str:
    """`encode` as one line of JSON text: keys in field order, no spaces, ASCII."""
    return json.dumps(encode(value), separators=(",", ":"), allow_nan=False)


def decode(kind: type[T], data: object, *, name: str | None = None) -> T:
    """Build a value of type `kind` from its JSON form.

    Raises:
        Refused: every unknown key, missing key and wrong type, each with its path.
    """
    found = Refusals()
    value = _decode(kind, data, name or _title(kind), found)
    found.raise_any()
    return cast(T, value)


def loads(kind: type[T], text: str | bytes, *, name: str | None = None) -> T:
    """`decode` from JSON text.

    Raises:
        Refused: also when the text is not JSON, repeats a key, or holds NaN or Infinity.
    """
    title = name or _title(kind)
    try:
        data = json.loads(text, object_pairs_hook=no_repeats, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refuse(title, text, f"is not JSON: {error}", "send one JSON value") from None
    return decode(kind, data, name=title)


def schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a type, with a `$defs` entry for each dataclass it reaches."""
    definitions: dict[str, Any] = {}
    body = _schema(kind, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body, "$defs": definitions}


def laid_out(body: Any, width: int = 120, taken: int = 2) -> str:
    """JSON text for a reader: lines filled up to a width, of which the first has `taken` characters more."""
    line = json.dumps(body, ensure_ascii=False)
    if len(line) + taken <= width or not isinstance(body, (dict, list)):
        return line
    names = [""] * len(body) if isinstance(body, list) else [f"{json.dumps(name)}: " for name in body]
    values = body if isinstance(body, list) else body.values()
    lines = [""]
    for row in (name + laid_out(each, width - 1, len(name) + 1) for name, each in zip(names, values, strict=True)):
        room = width - 4 - len(lines[-1].rpartition("\n")[2]) - len(row.partition("\n")[0])
        if lines[-1] and room > 0 and not ("\n" in row and "\n" in lines[-1]):
            lines[-1] += f", {row}"
        else:
            lines.append(row)
    inside = ",\n".join(lines[1:]).replace("\n", "\n ")
    return f"[\n {inside}\n]" if isinstance(body, list) else f"{{\n {inside}\n}}"


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The resolved annotations of a class or function, computed once."""
    return typing.get_type_hints(kind, include_extras=True)


@functools.cache
def _fields(kind: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


@functools.cache
def _reals(kind: type) -> frozenset[str]:
    """The fields of a dataclass that hold `Real` numbers."""
    return frozenset(name for name, held in hints(kind).items() if _holds_real(held))


def _holds_real(kind: Any) -> bool:
    return kind == Real or any(map(_holds_real, typing.get_args(kind)))


def conforms(kind: Any, value: object) -> bool:
    """Whether an in-memory value has the type `kind`, as strictly as for its JSON form.

    A subclass of a tuple, say, is refused: its `==` and `len` may say anything, and run code when a check looks at it.
    Nothing here runs a method of the value before its type is known to be one of Python's or of the spec's.

    Separate from `decode` for speed: every answer passes through it, and a mesh of 65 536 ranks holds half a million
    numbers.
    """
    return _fits(kind)(value)


@functools.cache
def _fits(kind: Any) -> Callable[[object], bool]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value: True
    if origin in (types.UnionType, typing.Union):
        choices = [_fits(choice) for choice in arguments]
        return lambda value: any(choice(value) for choice in choices)
    if origin is typing.Literal:
        return lambda value: any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        every = _every(arguments[0])
        return lambda value: type(value) in _TUPLES and every(cast(Iterable[object], value))
    if origin is tuple:
        members = [_fits(argument) for argument in arguments]
        return lambda value: (
            type(value) in _TUPLES
            and len(cast(tuple[object, ...], value)) == len(members)
            and all(fits(item) for fits, item in zip(members, cast(tuple[object, ...], value), strict=True))
        )
    if origin is frozenset:
        every = _every(arguments[0])
        return lambda value: type(value) in _SETS and every(cast(Iterable[object], value))
    if origin in _MAPPINGS:
        every = _every(arguments[1])
        return lambda value: (
            type(value) in _DICTS
            and set(map(type, cast(dict[object, object], value))) <= {str}
            and every(cast(dict[object, object], value).values())
        )
    if dataclasses.is_dataclass(kind):
        types_of = hints(cast(type, kind))
        fields = {field.name: _fits(types_of[field.name]) for field in dataclasses.fields(kind)}
        return lambda value: type(value) is kind and all(fits(getattr(value, name)) for name, fits in fields.items())
    if kind == Real:
        return lambda value: type(value) in (int, float)
    if kind is float:
        return lambda value: type(value) in (int, float) and math.isfinite(cast(float, value))
    return lambda value: type(value) is kind


@functools.cache
def _every(kind: Any) -> Callable[[Iterable[object]], bool]:
    """Whether all of many values fit, checked level by level instead of one by one."""
    if kind in (int, str, bool, bytes):
        return lambda values: set(map(type, values)) <= {kind}
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is ...:
        members = _every(arguments[0])

        def sequences(values: Iterable[object]) -> bool:
            held = list(values)
            chained = itertools.chain.from_iterable(cast(Iterable[Iterable[object]], held))
            return set(map(type, held)) <= {tuple, list} and members(chained)

        return sequences
    if dataclasses.is_dataclass(kind):
        types_of = hints(cast(type, kind))
        fields = {field.name: _every(types_of[field.name]) for field in dataclasses.fields(kind)}

        def records(values: Iterable[object]) -> bool:
            held = list(values)
            return set(map(type, held)) <= {kind} and all(
                fit(map(operator.attrgetter(name), held)) for name, fit in fields.items()
            )

        return records
    fits = _fits(kind)
    return lambda values: all(map(fits, values))


def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object without repeated keys. Raises ValueError."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} is given twice")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _title(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _decode(kind: Any, data: object, path: str, found: Refusals) -> object:
    if type(data) is kind and kind in _PLAIN:
        return data
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return data
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in arguments:
            return None
        choices = [choice for choice in arguments if choice is not type(None)]
        for choice in choices[:-1]:
            attempt = Refusals()
            value = _decode(choice, data, path, attempt)
            if not attempt:
                return value
        return _decode(choices[-1], data, path, found)
    if origin is typing.Literal:
        matches = any(data == choice and type(data) is type(choice) for choice in arguments)
        found.unless(matches, path, data, f"is none of {', '.join(map(repr, arguments))}", "use one of them")
        return data
    if origin is tuple:
        return _decode_tuple(arguments, data, path, found)
    if origin is frozenset:
        inside = Refusals()
        members = _decode_tuple((arguments[0], ...), data, path, inside)
        found.merge(inside)
        return frozenset() if inside else frozenset(cast(Any, members))  # a wrong one may not even be hashable
    if origin in _MAPPINGS:
        if not isinstance(data, dict):
            found.add(path, data, "is not an object", "send a JSON object")
            return {}
        values = {key: _decode(arguments[1], item, f"{path}.{key}", found) for key, item in data.items()}
        return _with_integers(values, path, found) if arguments[0] is int else values
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(cast(type, kind), data, path, found)
    return _decode_scalar(kind, data, path, found)


def _with_integers(values: dict[str, object], path: str, found: Refusals) -> dict[int, object]:
    """JSON has only texts for keys: the integers that they stand for."""
    for key in [key for key in values if not re.fullmatch("0|-?[1-9][0-9]*", key)]:
        found.add(f"{path}.{key}", values.pop(key), "its key is not an integer", "write it in digits, like 0 or 12")
    return {int(key): value for key, value in values.items()}


def _decode_tuple(arguments: tuple[Any, ...], data: object, path: str, found: Refusals) -> tuple[object, ...]:
    if not isinstance(data, list):
        found.add(path, data, "is not a list", "send a JSON array")
        return ()
    if len(arguments) == 2 and arguments[1] is ...:
        return tuple(_decode(arguments[0], item, f"{path}[{i}]", found) for i, item in enumerate(data))
    if len(data) != len(arguments):
        found.add(path, data, f"has {len(data)} entries, not {len(arguments)}", "send exactly that many")
        return ()
    return tuple(
        _decode(k, item, f"{path}[{i}]", found) for i, (k, item) in enumerate(zip(arguments, data, strict=True))
    )


def _decode_dataclass(kind: type, data: object, path: str, found: Refusals) -> object:
    if not isinstance(data, dict):
        found.add(path, data, f"is not a {kind.__name__}", "send a JSON object")
        return None
    fields = _fields(kind)
    for key in [key for key in data if key not in fields]:
        found.add(f"{path}.{key}", data[key], f"{kind.__name__} has no such field", f"known: {', '.join(fields)}")
    inside = Refusals()
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints(kind)[name], data[name], f"{path}.{name}", inside)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            inside.add(f"{path}.{name}", None, "is missing", f"give the {kind.__name__} its {name}")
    if not inside:
        try:
            return kind(**values)
        except Refused as refused:  # the value's own rules
            inside.extend(refused)
    found.merge(inside)
    return None


def _decode_bytes(data: object, path: str, found: Refusals) -> bytes:
    try:
        return base64.b64decode(cast(str, data), validate=True)
    except (TypeError, ValueError):  # not text, or illegal characters; a wrong length is also a ValueError
        found.add(path, data, "is not base64", "send the bytes as a base64 text")
        return b""


def _decode_scalar(kind: Any, data: object, path: str, found: Refusals) -> object:
    if kind is bytes:
        return _decode_bytes(data, path, found)
    if kind == Real:
        return (
            _UNBOUNDED[data]
            if isinstance(data, str) and data in _UNBOUNDED
            else _decode_scalar(float, data, path, found)
        )
    legal = {
        bool: isinstance(data, bool),
        int: isinstance(data, int) and not isinstance(data, bool),
        float: isinstance(data, (int, float)) and not isinstance(data, bool) and _is_finite(data),
        str: isinstance(data, str),
        type(None): data is None,
    }
    if kind not in legal:
        raise AssertionError(f"{path}: the codec does not know {kind!r}")
    found.unless(legal[kind], path, data, f"is not a {_title(kind)}", f"send a {_title(kind)}")
    return float(cast(float, data)) if kind is float and legal[float] else data


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond floating point
        return False


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return {}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(choice, definitions) for choice in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        items = [_schema(item, definitions) for item in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is frozenset:
        return {"type": "array", "items": _schema(arguments[0], definitions), "uniqueItems": True}
    if origin in _MAPPINGS:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if dataclasses.is_dataclass(kind):
        name = _title(kind)
        if name not in definitions:
            definitions[name] = {}  # stops the recursion of a type that reaches itself
            definitions[name] = _schema_of_fields(cast(type, kind), definitions)
        return {"$ref": f"#/$defs/{name}"}
    if kind is bytes:
        return {"type": "string", "contentEncoding": "base64"}
    if kind == Real:
        return {"anyOf": [{"type": "number"}, {"enum": list(_UNBOUNDED)}]}
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": names[kind]}


def _schema_of_fields(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    fields = dataclasses.fields(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip().split("\n")[0],
        "properties": {field.name: _schema(hints(kind)[field.name], definitions) for field in fields},
        "required": [
            f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ],
        "additionalProperties": False,
    }

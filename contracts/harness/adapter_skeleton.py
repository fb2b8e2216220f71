"""The skeleton of an adapter, written from the protocols that define the questions."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from contracts.spec import PROTOCOLS, Question, questions

WIDTH = 120
DEFAULT = ("blocks", "training")


@dataclass(frozen=True, kw_only=True)
class Method:
    """One question as a method: its parameters with their types, and what its docstring says."""

    name: str
    signature: str
    doc: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """The questions of one side, as one file of contracts/spec/ asks them."""

    name: str
    about: str
    module: str
    methods: tuple[Method, ...]


def sides() -> Mapping[str, Any]:
    """Group → protocol: `blocks`, `training`, …, and `stack` for what is emitted before anything is built."""
    return {protocol.__module__.rsplit(".", 1)[-1]: protocol for protocol in PROTOCOLS}


def written(name: str, groups: Iterable[str]) -> str:
    """The text of an adapter of this name that answers nothing yet."""
    told: set[str] = set()
    found = [group_of(group, sides()[group], told) for group in dict.fromkeys(groups)]
    environment = Environment(
        loader=PackageLoader("contracts.harness", "."), undefined=StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("adapter_skeleton.py.j2").render(name=name, groups=found, imports=_imports(found))


def group_of(name: str, protocol: Any, told: set[str]) -> Group:
    """The questions of one side. `told` has the dataclasses that were explained before, and grows by those met here."""
    methods = tuple(_method(protocol, questions()[each], told) for each in vars(protocol) if each in questions())
    about = (inspect.getdoc(protocol) or "").splitlines()[0].rstrip(".")
    return Group(name=name, about=about, module=protocol.__module__, methods=methods)


def _method(protocol: Any, question: Question, told: set[str]) -> Method:
    """A question as it stands in its protocol, with the values that go in and out where they are met first."""
    types = dict(getattr(protocol, question.name).__annotations__)
    answer = types.pop("return")
    parameters = ", ".join(["self", *(f"{each}: {kind}" for each, kind in types.items())])
    signature = f"def {question.name}({parameters}) -> {answer}:"
    if len(signature) + 4 > WIDTH:
        signature = f"def {question.name}(\n        {parameters}\n    ) -> {answer}:"
    values = [value for kind in (*question.parameters.values(), question.answer)
              for value in _values(kind, protocol.__module__)]  # fmt: skip
    new = [value for value in dict.fromkeys(values) if value.__name__ not in told]
    told |= {value.__name__ for value in new}
    doc = textwrap.indent("\n\n".join([question.doc, *(_told(value) for value in new)]), " " * 8).strip()
    return Method(name=question.name, signature=signature, doc=f"{doc}\n        " if "\n" in doc else doc)


def _values(kind: Any, module: str) -> Iterator[type]:
    """The dataclasses of a module that a type reaches, itself first."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__module__ == module:
            yield kind
            for inner in inspect.get_annotations(kind, eval_str=True).values():
                yield from _values(inner, module)
        return
    for inner in getattr(kind, "__args__", ()):
        yield from _values(inner, module)


def _told(value: Any) -> str:
    """A dataclass as it is written: its fields with their types, and its docstring."""
    fields = ", ".join(f"{name}: {kind}" for name, kind in value.__annotations__.items())
    head = textwrap.fill(f"{value.__name__}({fields})", WIDTH - 12, subsequent_indent="    ", break_long_words=False)
    return f"{head}\n{textwrap.indent(inspect.getdoc(value) or '', '    ')}"


def _imports(groups: Iterable[Group]) -> str:
    """The source of the names in the signatures: what the protocol's module imports, or that module itself."""
    wanted: dict[str, set[str]] = {"collections.abc": {"Mapping"}, "contracts.spec.topology": {"Layout"}}
    for group in groups:
        needed = "\n".join(method.signature for method in group.methods)
        for name, home in _homes(sys.modules[group.module]).items():
            if re.search(rf"\b{name}\b", needed):
                wanted.setdefault(home, set()).add(name)
    wanted.setdefault("contracts.spec.errors", set()).add("NotOffered")
    return "\n\n".join(
        "\n".join(_import(home, names) for home, names in sorted(wanted.items()) if home.startswith("contracts") == own)
        for own in (False, True)
    )


def _import(home: str, names: Iterable[str]) -> str:
    ordered = sorted(names, key=lambda name: (not name.isupper(), name.lower()))
    line = f"from {home} import {', '.join(ordered)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {home} import (", *(f"    {name}," for name in ordered), ")"])


def _homes(module: Any) -> dict[str, str]:
    """Name → module, for what a module imports by `from … import …` and for what it defines at its top."""
    found: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found |= {alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = module.__name__
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: module.__name__ for target in targets if isinstance(target, ast.Name)}
    return found

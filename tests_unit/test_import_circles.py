"""No module imports itself by way of others. Read off the source, so that an import inside a function, one for the type
checker, one by `import_module` and a command of `cli.py` count too: a reader of the file follows those as well."""

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

import contracts

ROOT = Path(contracts.__file__).parent
_ENTRY_POINT = re.compile(r"\w+(\.\w+)+:\w+")


def _modules(root: Path) -> dict[str, ast.Module]:
    """Every module below a package's folder, parsed, by its dotted name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def _imports(tree: ast.Module, modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """What a module imports. `from package import module` needs that module, not what the package itself imports.

    A literal that is a module counts where it is given to `import_module`, and "module:name" everywhere.
    """
    for node in _imported(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "imports here are absolute"
            for each in node.names:
                name = f"{node.module}.{each.name}"
                yield name if name in modules else node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (each.value for each in node.args[:1] if isinstance(each, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _ENTRY_POINT.fullmatch(node.value):
            yield node.value.partition(":")[0]


def _imported(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a module, without those that run only if it is the program."""
    for statement in tree.body:
        if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            yield from ast.walk(statement)


def _graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module → the modules of the same package that it imports."""
    return {name: (set(_imports(tree, modules)) & modules.keys()) - {name} for name, tree in modules.items()}


def _circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle, each module importing the next; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_import_runs_in_a_circle() -> None:
    graph = _graph(_modules(ROOT) | _modules(ROOT.with_name("rankproof")))
    assert len(graph) > 500
    assert "contracts.bringup.commands.launch" in graph["contracts.harness.cli"]
    circle = _circle(graph)
    assert not circle, f"imports run in a circle: {' → '.join(circle)}"


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p import a",
        "from p.a import thing",
        "def f():\n    from p.a import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import thing",
        "import importlib\nthing = importlib.import_module('p.a')",
        "from importlib import import_module\ndef f():\n    import_module('p.a')",
        "THING = 'p.a:thing'",
    ],
)
def test_a_circle_is_named(tmp_path: Path, back: str) -> None:
    package = tmp_path / "p"
    package.mkdir()
    sources = {"__init__": "", "a": "from p import b", "b": "from p.c import thing", "c": back}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    circle = _circle(_graph(_modules(package)))
    assert set(circle) == {"p.a", "p.b", "p.c"}
    assert {("p.a", "p.b"), ("p.b", "p.c"), ("p.c", "p.a")} == set(pairwise(circle))

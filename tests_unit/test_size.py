"""The repository does not grow unless somebody wants it to."""

import ast
import subprocess
from pathlib import Path

from tests_unit import size
from tests_unit._parties.running import write


def test_the_size_of_the_code_has_not_grown() -> None:
    grown = size.grown(size.recorded(), size.measured())
    assert not grown, f"{'; '.join(grown)}: remove as much, or `python -m tests_unit.size` with a reason in the commit"


def test_lines_added_in_one_area_must_be_removed_in_another() -> None:
    before = {"statements": {"a": 5, "b": 5}}
    assert size.grown(before, {"statements": {"a": 7, "b": 3}}) == []
    assert size.grown(before, {"statements": {"a": 7, "b": 4}}) == ["statements: 1 more than size.toml has (a +2)"]
    assert size.grown({}, {"prose": {"new": 1}}) == ["prose: 1 more than size.toml has (new +1)"]


def test_statements_are_those_of_the_syntax_tree(tmp_path: Path) -> None:
    nested = """
def f(x):
    '''Doc.'''
    try:
        if x: return 1; y = 2
        else: pass
    except ValueError: raise
    finally: print()
    match x:
        case 1: del x
"""
    write(tmp_path, {"one.py": nested, "ignored.py": "x = 1\n", ".gitignore": "ignored.py\n"})
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    wanted = sum(isinstance(each, ast.stmt) for each in ast.walk(ast.parse(nested)))
    assert size.measured(tmp_path)["statements"] == {".": wanted}

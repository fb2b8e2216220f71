"""Who answered: every process says which code it has, and two different ones under one name judge nothing."""

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts.harness.parties import apart
from contracts.harness.plugin import _of_one_code
from contracts.spec.records import Answering, Result, Subject
from contracts.stacks.kit.answering import answering, located, version_of
from tests_unit._parties.running import ROOT, metadata, rankproof, write
from tests_unit.ranks.running import torchrun

OURS = """
from contracts.stacks.reference.stack import Reference
class Ours(Reference):
    name, version = "ours", "1.0"
"""
COMMANDS = """
import sys; sys.path[:0] = {path!r}
from contracts.stacks.kit.answering import answering, located, version_of
imported = sorted(sys.modules.keys() & {{"forked", "forked.core"}})
print(version_of("forked", "forked.core"), located("forked.core"), imported)
"""


def git(folder: Path, *words: str) -> str:
    by = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *by, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def checkout(folder: Path, files: Mapping[str, str]) -> str:
    """A repository with these files in one commit; returns the commit."""
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


TREE = {
    "forked/core/package_info.py": "MAJOR = 1\nMINOR = 2\nPATCH = 3\nPRE_RELEASE = 'rc1'\n",
    "forked/core/__init__.py": "raise RuntimeError('the fork was imported')\n",
}
"""A source tree that says its version as Megatron-Core does, and raises at import."""


def seen(*path: Path) -> list[str]:
    """Version and place of a package on a path, and what was imported to find out."""
    code = COMMANDS.format(path=[*map(str, path)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_the_commit_of_a_checkout_is_found_without_importing_it(tmp_path: Path) -> None:
    commit = checkout(tmp_path, TREE)
    assert seen(tmp_path) == [f"1.2.3rc1+g{commit[:9]}", str(tmp_path / "forked/core"), "[]"]
    (tmp_path / "forked/core/__init__.py").write_text("", encoding="utf-8")
    assert seen(tmp_path)[0] == f"1.2.3rc1+g{commit[:9]}.dirty"


def test_packages_in_an_environment_inside_a_checkout_do_not_get_its_commit(tmp_path: Path) -> None:
    """`.venv` lies in the repository that its user works in."""
    checkout(tmp_path, {".gitignore": "site/\n"})
    write(tmp_path, {"site/forked/core/__init__.py": '__version__ = "4.5"\n'})
    version = seen(tmp_path / "site")[0]
    assert version.startswith("4.5+files.")
    assert len(version) == len("4.5+files.") + 8
    (tmp_path / "site/forked/core/more.py").touch()
    assert seen(tmp_path / "site")[0] != version, "another file is other code"


def test_a_copy_that_shadows_an_installed_package_does_not_get_its_version(tmp_path: Path) -> None:
    site, copy = tmp_path / "site", tmp_path / "copy"
    for folder in (site, copy):
        write(folder, {"forked/core/__init__.py": ""})
    metadata(site, "forked", "9.9", RECORD="forked/core/__init__.py,,\n")
    assert seen(site)[0] == "9.9"
    version, place, *_ = seen(copy, site)
    assert version.startswith("9.9+files.")
    assert place == str(copy / "forked/core")


def test_a_module_that_cannot_be_found_has_no_identity() -> None:
    assert located("no.such.package") is None
    assert version_of("no-such", "no.such.package") is None
    assert answering("no.such.package", "1", "judge") == ()


PARTS = """
import sys; sys.path.insert(0, sys.argv[1])
from contracts.stacks.kit.answering import answering_of
import importlib
print(answering_of(importlib.import_module(sys.argv[2]).Ours())[-1].digest)
"""


@pytest.mark.parametrize("module", ["ours", "lanes.ours", "whole"])
def test_an_adapter_consists_of_what_it_imports_from_beside_it(module: str, tmp_path: Path) -> None:
    imports = "from .parts import deeper\n" if "." in module else "def later():\n    from parts import deeper\n"
    folder = tmp_path / module.rpartition(".")[0].replace(".", "/")
    own = folder / ("whole/__init__.py" if module == "whole" else "ours.py")
    inner = "from lanes import deep\n" if "." in module else "import deep\n"
    write(folder, {str(own): OURS + imports, "parts/__init__.py": inner, "parts/deeper.py": "", "deep.py": "",
                   "other.py": "", "deep.txt": ""})  # fmt: skip

    def digest() -> str:
        words = [sys.executable, "-c", PARTS, str(tmp_path), module]
        return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout

    before = digest()
    for changed in ("other.py", "deep.txt"):
        (folder / changed).write_text("X = 1\n", encoding="utf-8")
    assert digest() == before, "it imports neither"
    for changed in ("parts/__init__.py", "parts/deeper.py", "deep.py"):
        (folder / changed).write_text(f"{(folder / changed).read_text()}X = 1\n", encoding="utf-8")
        assert digest() != before, changed
        before = digest()
    metadata(tmp_path, "installed", "1")
    installed = digest()
    (folder / "deep.py").write_text("", encoding="utf-8")
    assert digest() == installed, "what is installed beside it is another package's"


def code(**changed: str) -> Answering:
    return Answering(**{"process": "judge", "module": "ours", "path": "/a", "version": "1", "digest": "d" * 64,
                        "python": "3.11.7 /a/python", "torch": "2.13.0", **changed})  # type: ignore[arg-type]  # fmt: skip


def subject(*answering: Answering, name: str = "ours", version: str = "1") -> Subject:
    return Subject(
        name=name, version=version, origin=name, offers=frozenset(), layouts=frozenset(), answering=answering
    )


@pytest.mark.parametrize(("field", "other"), [("digest", "e" * 64), ("torch", "2.12.0"), ("python", "3.12.1 /b/python"),
                                          ("version", "2")])  # fmt: skip
def test_two_processes_with_different_code_of_one_name_are_distinguished(field: str, other: str) -> None:
    words = apart([subject(code(), code(process="worker", path="/b", **{field: other}))])
    assert words.startswith("two answer as ours 1: the judge has ours 1 of /a (files dddddddddddd")
    for part in ("the worker has", other[:12], "--at PATH"):
        assert part in words


def test_equal_code_in_two_places_is_no_conflict() -> None:
    assert not apart([subject(code(), code(process="worker", path="/b"))])
    assert not apart([subject(code()), subject(code(version="2", digest="e" * 64), version="2")])
    assert apart([subject(code()), subject(code(digest="e" * 64))]), "an assistant under the subject's name"


def test_different_code_under_one_name_is_not_judged_and_both_are_named(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "ours.py").write_text(OURS + f"    # {folder.name}\n", encoding="utf-8")
    served = (sys.executable, "-P", "-m", "contracts.stacks.serve", "ours:Ours")
    other = shlex.join(["env", "-C", str(there), *served])
    words = ("check", "--stack", "ours:Ours", "--profile", "PAT-01")
    done = rankproof(*words, "--with", f"launched:{other}", "--report", "apart", cwd=here, code=3)
    assert "INCOMPLETE: ours 1.0" in done.stdout, done.stdout
    assert "9 not run" in done.stdout, done.stdout
    assert "two answer as ours 1.0: the judge has ours 1.0 of" in " ".join(done.stdout.split()), done.stdout
    rankproof(*words, "--with", f"launched:{shlex.join(served)}", "--report", "same", cwd=here, code=0)


def test_every_form_names_the_judged_commit(tmp_path: Path) -> None:
    commit = checkout(tmp_path, {"ours.py": OURS, ".gitignore": "report/\n__pycache__/\n"})
    done = rankproof("check", "--stack", "ours:Ours", "--profile", "PAT-01", "--report", "report", cwd=tmp_path, code=0)
    headline = f"CONFORMANT: ours 1.0 at {commit[:9]}, profile PAT-01 (9 holds)"
    assert headline in done.stdout, done.stdout
    assert f"Judged: ours 1.0, commit {commit[:12]}, files" in done.stdout, done.stdout
    folder = tmp_path / "report"
    told = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))
    assert told["headline"] == headline
    assert told["answering"][0]["commit"] == commit
    assert not told["answering"][0]["dirty"]
    assert told["answering"][0]["python"].endswith(sys.executable)
    said = ElementTree.parse(folder / "junit.xml").iter("property")
    properties = {each.get("name"): str(each.get("value")) for each in said}
    assert f"commit {commit[:12]}" in properties["judged 1"]
    for name in ("report.html", "summary.md"):
        text = (folder / name).read_text(encoding="utf-8")
        assert f"commit {commit[:12]}" in text, name
        assert commit[:9] in text, name
    (tmp_path / "ours.py").write_text(OURS + "\n", encoding="utf-8")
    done = rankproof("check", "--stack", "ours:Ours", "--profile", "PAT-01", "--report", "report", cwd=tmp_path)
    assert f"ours 1.0 at {commit[:9]}+dirty" in done.stdout, done.stdout
    assert "with changes" in done.stdout, done.stdout


def test_a_result_of_a_worker_with_different_code_is_rejected() -> None:
    held = Result(id="PAT-01", case="nam56r", outcome="holds")
    assert _of_one_code(held, {"a"}, "a") is held
    assert _of_one_code(held, set(), "a") is held
    other = _of_one_code(held, {"b"}, "a")
    assert (other.outcome, other.item) == ("not run", held.item)
    assert "other code of the stack: b, here a" in other.words


RANKS = """
import os, pytest
from contracts.ranks.rank_environment import EQUAL
pytest_plugins = ["contracts.ranks.plugin"]
def pytest_configure(config):
    config.stash[EQUAL] = {"code of the stack": os.environ["RANK"]}
"""


@pytest.mark.torchrun
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install torch")
def test_ranks_with_different_code_are_not_judged(tmp_path: Path) -> None:
    files = {"test_sum.py": "def test_sum():\n    assert summed(1) == 2\n", "conftest.py": RANKS}
    run = torchrun(tmp_path, files, ranks=2)
    assert run.code != 0
    assert "code of the stack" in run.output, run.output
    assert not run.outcomes

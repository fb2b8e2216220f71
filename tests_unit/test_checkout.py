"""`check --at`: the code of a checkout, a worktree or a revision answers, and nothing else under its name."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.harness import checkout
from contracts.spec import Refused
from tests_unit._parties.running import RANKPROOF, ROOT, Done, environment, ran, rankproof, write
from tests_unit.test_answering import checkout as repository
from tests_unit.test_answering import git

ADAPTER = """
class Ours:
    name, version, package = "ours", "1", "forked"
    offers, layouts, labels = frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        from forked.blocks import build
        return build(pattern, depth)
"""
RIGHT = """
FAMILY = {"A": "ablock", "E": "eblock", "M": "mblock", "R": "rblock"}
def build(pattern, depth):
    return tuple(FAMILY[pattern[at % len(pattern)]] for at in range(depth))
"""
WRONG = RIGHT.replace("range(depth)", "range(depth // len(pattern) * len(pattern))")


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """A repository of two commits, the first of which is wrong; beside it an adapter in a folder `work`."""
    folder = tmp_path / "fork"
    for text in (WRONG, RIGHT):
        write(folder / "src/forked", {"__init__.py": "", "blocks.py": text})
        if text is WRONG:
            repository(folder, {"README": ""})
        else:
            git(folder, "commit", "-q", "-a", "-m", "two")
    write(tmp_path, {"work/ours.py": ADAPTER})
    return folder


def judged(fork: Path, at: object, *words: object, code: int | None = None, **changes: str) -> Done:
    words = ("check", "--stack", "ours:Ours", "--at", at, "--profile", "PAT-01", "--report", "report", *words)
    if not changes:
        return rankproof(*words, cwd=fork.parent / "work", code=code)
    return ran([RANKPROOF, *words], code=code, cwd=fork.parent / "work", env=environment(**changes))


def answering(fork: Path) -> list[dict[str, str]]:
    told = json.loads((fork.parent / "work/report/verdict.json").read_text(encoding="utf-8"))
    found: list[dict[str, str]] = told["answering"]
    return found


def test_a_checkout_is_imported_before_the_installed_package(fork: Path) -> None:
    installed = fork.parent / "installed/forked"
    write(installed, {"__init__.py": "raise RuntimeError('the installed one')"})
    done = judged(fork, "../fork", PYTHONPATH=f"{installed.parent}:{ROOT}", code=0)
    assert answering(fork)[0]["path"] == str(fork / "src/forked")
    assert answering(fork)[0]["commit"] == git(fork, "rev-parse", "HEAD")
    assert "CONFORMANT: ours 1 at " in done.stdout
    assert "RANKPROOF_AT" not in done.stdout


def test_a_revision_is_judged_in_a_worktree_that_is_removed_afterwards(fork: Path) -> None:
    done = judged(fork, f"{fork}@HEAD~1", code=1)
    before = git(fork, "rev-parse", "HEAD~1")
    assert answering(fork)[0]["commit"] == before
    assert f"VIOLATED: ours 1 at {before[:9]}" in done.stdout
    assert f"--at {shlex.quote(f'{fork}@HEAD~1')} --profile" in done.stdout, "the command that judges again"
    assert len(git(fork, "worktree", "list").splitlines()) == 1
    assert git(fork, "status", "--porcelain") == ""


def test_a_file_whose_content_the_repository_lacks_is_left_out_and_named(fork: Path) -> None:
    """As in a snapshot without its largest files; the checkout is none with changes for that."""
    (fork / "data.bin").write_text("large", encoding="utf-8")
    git(fork, "add", ".")
    git(fork, "commit", "-q", "-m", "data")
    content = git(fork, "rev-parse", "HEAD:data.bin")
    (fork / ".git/objects" / content[:2] / content[2:]).unlink()
    done = judged(fork, f"{fork}@HEAD", "--changed", "HEAD~2..", code=0)
    assert f"left out, since {fork} lacks their content: data.bin" in done.stderr
    assert f"CONFORMANT: ours 1 at {git(fork, 'rev-parse', 'HEAD')[:9]}," in done.stdout
    assert "Order: HEAD~2..: 2 files changed, " in done.stdout, "of the checkout, not of the working directory"
    assert len(git(fork, "worktree", "list").splitlines()) == 1


BY_NAME = """
import importlib

class Answers:
    def blocks(self, pattern, depth):
        return importlib.import_module("forked.blocks").build(pattern, depth)

class Ours:
    name, version, package = "ours", "1", "forked"
    offers, layouts, labels = frozenset({"blocks"}), frozenset(), {}

    def __getattr__(self, name):
        return getattr(Answers(), name)
"""


def test_check_changed_follows_modules_that_an_adapter_imports_by_name(fork: Path) -> None:
    """Its questions are attributes of an instance, too."""
    (fork.parent / "work/ours.py").write_text(BY_NAME, encoding="utf-8")
    done = judged(fork, f"{fork}@HEAD", "--changed", "HEAD~1..", code=0)
    first, of = re.search(r"1 file changed, (\d+) of (\d+) items judged first", done.stdout).groups()  # type: ignore[union-attr]
    assert first == of != "0"


WRONG_WORDS = {
    "no-folder": ("nowhere", "is no folder"),
    "no-revision": ("{fork}@nothing", "git says: "),
    "no-repository": ("{work}@HEAD", "git says: "),
}


@pytest.mark.parametrize("given", WRONG_WORDS)
def test_a_folder_that_is_no_checkout_is_refused(fork: Path, given: str) -> None:
    at, words = WRONG_WORDS[given]
    done = judged(fork, at.format(fork=fork, work=fork.parent / "work"), code=2)
    assert "rankproof: --at = " in done.stderr
    assert words in done.stderr
    assert not (fork.parent / "work/report").exists()


def test_a_checkout_without_the_package_is_refused(fork: Path) -> None:
    other = fork.parent / "other"
    other.mkdir()
    done = judged(fork, other, PYTHONPATH=f"{fork / 'src'}:{ROOT}", code=3)
    assert f"ours is answered by {fork / 'src/forked'}, {fork.parent / 'work/ours.py'}" in done.stderr
    assert f"nothing of it lies in {other}" in done.stderr


@pytest.mark.parametrize("stack", ["reference", "flag-table", "launched:./serve"])
def test_a_stack_outside_the_checkout_is_refused_together_with_one(stack: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"does not go with --stack {stack}"):
        checkout.first(stack, str(tmp_path))


@pytest.mark.parametrize(("stack", "holds"), [("megatron==0.19.2", "megatron/core"), ("torchtitan", "torchtitan"),
                                              ("transformers", "src/transformers")])  # fmt: skip
def test_a_shipped_stacks_package_is_found_in_its_repositorys_layout(
    stack: str, holds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.delenv(checkout.ROOT, raising=False)
    with pytest.raises(Refused, match=f"has neither {holds.removeprefix('src/')} nor src/"):
        checkout.first(stack, str(tmp_path))
    (tmp_path / holds).mkdir(parents=True)
    checkout.first(stack, str(tmp_path))
    root = str(tmp_path / "src" if holds.startswith("src/") else tmp_path)
    assert sys.path[0] == root
    assert os.environ["PYTHONPATH"] == f"{root}:/before"
    monkeypatch.delenv(checkout.ROOT)


def test_the_interpreter_given_by_python_judges(fork: Path) -> None:
    """Without the suite's packages it says so, and is no verdict; with them it answers."""
    own = fork.parent / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    python = own / "bin/python"
    done = judged(fork, fork, "--python", python, code=3)
    assert f"{python} cannot run the suite: No module named" in done.stderr
    assert f"in the checkout of rankproof run {python} -m pip install ." in done.stderr
    site = next((own / "lib").glob("python3*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "ours.pth").write_text("\n".join(ours), encoding="utf-8")
    judged(fork, fork, "--python", python, code=0)
    assert answering(fork)[0]["python"].endswith(f" {python}")
    judged(fork, fork, "--python", "nowhere/python", code=2)

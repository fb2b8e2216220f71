"""The two sides: commits, environments or layouts of one script. All that is wrong with the question is refused at
once, before anything runs."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from contracts.harness.ab import command
from contracts.harness.checkout import Repository
from contracts.spec import Refusals, Refused, launchers

T = TypeVar("T")
SUITE = Path(__file__).resolve().parents[3]
_PROBE = """
import importlib.metadata as m, json, sys, urllib.parse
found = {"python": sys.version.split()[0], "torch": "", "problem": "", "editable": []}
try:
    from rankproof import suite
    suite.load()
    import contracts.harness.commands.observe
    found["torch"] = m.version("torch")
except Exception as error:
    found["problem"] = f"{type(error).__name__}: {error}"
for each in m.distributions():
    said = json.loads(each.read_text("direct_url.json") or "{}")
    if said.get("dir_info", {}).get("editable"):
        found["editable"].append(urllib.parse.unquote(urllib.parse.urlparse(said["url"]).path))
print(json.dumps(found))
"""
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_AUTHOR = ("-c", "user.name=rankproof", "-c", "user.email=rankproof@localhost")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The question, as the user wrote it: one of `base`, `envs` and `layout` is given."""

    words: tuple[str, ...]
    base: str | None = None
    head: str | None = None
    envs: tuple[str, ...] = ()
    layout: bool = False
    reference: str | None = None
    links: tuple[str, ...] = ()
    out: Path | None = None

    @property
    def kind(self) -> str:
        return "commits" if self.base else "layouts" if self.layout else "environments"

    def refusals(self) -> Refusals:
        """What is wrong with it, whatever is installed or committed."""
        found = Refusals()
        kinds = [name for name, given in
                 (("--base", self.base), ("--env", self.envs), ("--layout", self.layout)) if given]  # fmt: skip
        found.unless(len(kinds) == 1, "sides", " ".join(kinds) or "none", "must be one of --base, --env and --layout",
                     "give --base REV, or --env A --env B, or --layout")  # fmt: skip
        free = self.out is None or not self.out.exists() or not any(self.out.iterdir())
        found.unless(free, "out", str(self.out), "is not empty", "give a new folder")
        two = len(self.envs) in (0, 2)
        found.unless(two, "env", " ".join(self.envs), "must be given twice", "give --env A --env B")
        for name, given, other in (("head", self.head, self.base), ("reference", self.reference, self.layout)):
            needs = "--base REV" if name == "head" else "--layout"
            found.unless(not given or bool(other), name, given, f"goes with {needs}", f"leave it out, or give {needs}")
        commands = {"command": self.words} | ({"reference": (*shlex.split(self.reference),)} if self.reference else {})
        for name, words in commands.items():
            found.unless(command.script_at(words) is not None, name, shlex.join(words), "starts no script by Python",
                         "give it after --, such as -- torchrun --nproc-per-node 2 train.py")  # fmt: skip
        if self.layout and not self.reference and command.script_at(self.words) is not None:
            known = command.on_one_rank(self.words) is not None
            found.unless(known, "layout", shlex.join(self.words), "is not started by torchrun",
                         "give the command of one rank: --reference 'python train.py'")  # fmt: skip
        return found


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side.

    Args:
        label: what it is, for a reader.
        revision: what its runs check out; empty if they run in the working directory, which is in no repository.
        loose: files that git does not track, and does not ignore, which belong to it.
        python: what its interpreter says of itself.
    """

    name: str
    label: str
    words: tuple[str, ...]
    revision: str = ""
    loose: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides; `top` is the repository that has them, `ignored` what its checkouts lack, and `changed` the lines of
    the head that its diff from the base names."""

    base: Side
    head: Side
    top: Path | None = None
    ignored: tuple[str, ...] = ()
    changed: Mapping[str, Sequence[range]] = field(default_factory=dict)


def sides(asked: Asked, lib: Path) -> Sides:
    """The sides of a question. `lib` is a new folder, in which each interpreter finds this suite.

    Raises:
        Refused: for all that is wrong with it.
    """
    found = asked.refusals()
    lib.mkdir(parents=True)
    (lib / "rankproof").symlink_to(SUITE / "rankproof")
    remedy = "give a revision of this repository"
    repository = Repository(path=".", given=asked.base or "HEAD", field="base", remedy=remedy)
    top = None
    try:
        top = Path(repository.git("rev-parse", "--show-toplevel").strip())
    except Refused as error:
        if asked.base:
            found.extend(error)
    for each in asked.links:
        there = top is not None and Path(each).exists() and (Path.cwd() / each).is_relative_to(top)
        found.unless(there, "link", each, "is no file or folder of this repository", "name what the script reads")
    pair = [_tried(found, make) for make in _made(asked, repository, top)]
    pair = [each and _tried(found, functools.partial(_probed, each, lib)) for each in pair]
    found.raise_any()
    base, head = (each for each in pair if each is not None)
    if top is None:
        return Sides(base=base, head=head)
    changed = _changed(repository, base, head) if asked.base else {}
    ignored = _listed(repository, "--others", "--ignored", "--exclude-standard", "--directory")
    return Sides(base=base, head=head, top=top, ignored=ignored, changed=changed)


def _tried(found: Refusals, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except Refused as error:
        found.extend(error)
        return None


def _made(asked: Asked, repository: Repository, top: Path | None) -> tuple[Callable[[], Side], Callable[[], Side]]:
    """What makes each side, without its interpreter."""
    env = launchers.without(os.environ)
    tree = Side(name="", label="", words=asked.words, env=env)

    def here() -> Side:
        return replace(tree, **_working_tree(repository)) if top is not None else replace(tree, label=str(Path.cwd()))

    if asked.base:
        at = replace(repository, given=asked.head or "HEAD", field="head")
        return (
            lambda: replace(tree, name="base", **_revision(repository, asked.base or "")),
            lambda: replace(replace(tree, **_revision(at, asked.head)) if asked.head else here(), name="head"),
        )
    if asked.layout:
        words = shlex.split(asked.reference) if asked.reference else command.on_one_rank(asked.words) or asked.words
        return (lambda: replace(here(), name="one rank", label=shlex.join(words), words=tuple(words)),
                lambda: replace(here(), name="this layout", label=shlex.join(asked.words)))  # fmt: skip
    envs = (*asked.envs, "", "")
    return (lambda: _in(envs[0], replace(here(), name="A")), lambda: _in(envs[1], replace(here(), name="B")))


def _revision(repository: Repository, revision: str) -> dict[str, Any]:
    commit = repository.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    return {"revision": commit, "label": f"{revision} = {_subject(repository, commit)}"}


def _subject(repository: Repository, commit: str) -> str:
    return repository.git("log", "-1", "--format=%h %s", commit, "--").strip()


def _working_tree(repository: Repository) -> dict[str, Any]:
    """The working tree as a commit that no branch has, with what git does not track beside it."""
    commit = repository.git("rev-parse", "HEAD").strip()
    kept = repository.git(*_AUTHOR, "stash", "create").strip()
    loose = _listed(repository, "--others", "--exclude-standard")
    edited = repository.git("diff", "--name-only", "HEAD", "--").splitlines()
    count = len(edited) + len(loose)
    more = f", with {count} changed file{'s' if count > 1 else ''}" if count else ""
    told = f"the working tree of {_subject(repository, commit)}{more}"
    return {"revision": kept or commit, "loose": loose, "label": told}


def _listed(repository: Repository, *words: str) -> tuple[str, ...]:
    """Files, from the root of the repository."""
    top = repository.git("rev-parse", "--show-toplevel").strip()
    return tuple(each for each in repository.git("ls-files", "-z", *words, path=top).split("\0") if each)


def _in(env: str, side: Side) -> Side:
    """A side in an environment: an interpreter, or a folder that has one."""
    python = Path(env, "bin", "python") if Path(env).is_dir() else Path(env)
    name = side.words[0]
    there = python.is_file() and os.access(python, os.X_OK)
    path = os.pathsep.join([str(python.absolute().parent), side.env.get("PATH", os.defpath)])
    folder = str(python.absolute().parent)
    own = str(python.absolute()) if name.startswith("python") else shutil.which(name, path=folder)
    found = Refusals()
    found.unless(there, "env", env, "is no interpreter", "give a path such as .venv/bin/python, or the folder .venv")
    found.unless("/" not in name, "command", name, "names an environment itself", f"write {Path(name).name}")
    if there and "/" not in name:
        found.unless(own is not None, "env", env, f"has no {name}", "install it there, or write python -m …")
    found.raise_any()
    words = (own or name, *side.words[1:])
    return replace(side, words=words, label=env, env={**side.env, "PATH": path})


def _probed(side: Side, lib: Path) -> Side:
    """A side whose interpreter has said that it can run the suite, and which torch it has."""
    found = Refusals()
    program = shutil.which(side.words[0], path=side.env.get("PATH"))
    found.unless(
        program is not None, "command", side.words[0], "is no program", "give python, torchrun or a path of one"
    )
    found.raise_any()
    paths = os.pathsep.join([each for each in (side.env.get("PYTHONPATH"), str(lib)) if each])
    env = {**side.env, "PYTHONPATH": paths}
    python = _interpreter(str(program))
    done = subprocess.run([python, "-P", "-c", _PROBE], env=env, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout) if done.returncode == 0 else {"problem": (done.stderr.splitlines() or [""])[-1]}
    found.unless(not said["problem"], "env" if side.name in ("A", "B") else "command", python,
                 f"cannot run rankproof: {said['problem']}",
                 f"install rankproof into it, in its checkout: {python} -m pip install .")  # fmt: skip
    found.raise_any()
    own = str(Path(side.words[0]).absolute()) if "/" in side.words[0] and command.starts_python(side.words[0]) else ""
    return replace(side, words=(own or side.words[0], *side.words[1:]), env=env, python=said)


def _interpreter(program: str) -> str:
    """The interpreter of a program: itself, or what its first line names."""
    if Path(program).name.startswith("python"):
        return program
    with Path(program).open("rb") as file:
        named = re.match(r"#!.*?(\S*python[\d.]*)", file.readline(500).decode("utf-8", "replace"))
    return named[1] if named else sys.executable


def _changed(repository: Repository, base: Side, head: Side) -> dict[str, list[range]]:
    """The lines of the head that its diff from the base names, by file; of a new file all."""
    top = repository.git("rev-parse", "--show-toplevel").strip()
    words = ("diff", "--unified=0", "--no-color", "--no-ext-diff", base.revision, head.revision, "--")
    text = repository.git(*words, path=top)
    found: dict[str, list[range]] = {}
    file = ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            file = line[4:].removeprefix("b/") if line != "+++ /dev/null" else ""
        elif (hunk := _HUNK.match(line)) and file:
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(file, []).append(range(max(1, first), max(1, first) + max(1, count)))
    for each in head.loose:
        with Path(top, each).open("rb") as new:
            found[each] = [range(1, 1 + max(1, sum(1 for _ in new)))]
    return found

"""The checkout whose code answers, `--at PATH` or `--at PATH@REV`: first wherever Python looks, here and in every
process that is started from here, so that the questions about launches and topology go to it too."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from contracts.spec.errors import Refused, Unreachable, refuse
from contracts.spec.stack import Party
from contracts.stacks.kit.answering import answering_of

PACKAGES = {"megatron": "megatron/core", "torchtitan": "torchtitan", "transformers": "transformers"}
"""Stack → the folder of its package, below the folder that is put on the path."""
ROOT = "RANKPROOF_AT"  # what a path or a revision has become, for the processes that judge
_BOOTSTRAP = """
import importlib.util, os, sys
suite, sys.argv[0] = sys.argv.pop(1), "rankproof"
if importlib.util.find_spec("contracts") is None and not suite.endswith("site-packages"):
    sys.path.append(suite)  # a checkout of the suite; other packages come from here
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), suite]))
try:
    from contracts.harness.cli import main
except ImportError as error:
    remedy = f"in the checkout of rankproof run {sys.executable} -m pip install ."
    sys.stderr.write(f"rankproof: {sys.executable} cannot run the suite: {error}: {remedy}\\n")
    sys.exit(3)
main()
"""


def sides(at: str) -> tuple[str, str] | None:
    """The two checkouts of `PATH@BASE..HEAD`, of `BASE..HEAD` in the working directory, or of `PATH..PATH`; without
    HEAD the working tree. None for one checkout.

    Raises:
        Refused: for `BASE...HEAD`, which would be a third one.
    """
    if Path(at).is_dir() or ".." not in at:
        return None
    for cut in (found.start() for found in re.finditer(r"\.\.", at)):
        if at[:cut] and Path(at[:cut]).is_dir() and Path(at[cut + 2 :]).is_dir() and at[cut + 2 :]:
            return at[:cut], at[cut + 2 :]
    path, _, revisions = at.rpartition("@")
    base, dots, head = revisions.partition("..")
    if not dots or not base:
        return None
    if head.startswith("."):
        problem = "has three dots: which base that is stands in no commit"
        raise refuse("--at", at, problem, "name the base, such as `$(git merge-base BASE HEAD)..HEAD`")
    path = path or "."
    return f"{path}@{base}", f"{path}@{head}" if head else path


@contextlib.contextmanager
def checked_out(at: str) -> Iterator[str]:
    """The path of a checkout. Of `PATH@REV` it is a worktree of that revision, which is taken away in the end.

    Raises:
        Refused: for what is neither a folder nor a revision of a repository.
    """
    path, _, revision = at.rpartition("@")
    if Path(at).is_dir() or not path:
        if not Path(at).is_dir():
            raise refuse("--at", at, "is no folder", "give a checkout, or PATH@REV for a revision of one")
        yield at
        return
    with tempfile.TemporaryDirectory(prefix="rankproof-") as folder:
        tree = Path(folder, Path(path).resolve().name or "tree")
        _worktree(at, path, tree, revision)
        try:
            yield str(tree / _git(at, path, "rev-parse", "--show-prefix").strip())
        finally:
            with contextlib.suppress(Exception):
                _git(at, path, "worktree", "remove", "--force", str(tree))


def _worktree(at: str, path: str, tree: Path, revision: str) -> None:
    """Make a worktree; files whose content the repository lacks, as a snapshot may, are left out and named."""
    words = ("worktree", "add", "--quiet", "--detach")
    try:
        _git(at, path, *words, str(tree), revision)
    except Refused:
        walked = _git(at, path, "rev-list", "--objects", "--missing=print", "--no-walk", revision, "--")
        lacking = {line[1:] for line in walked.splitlines() if line.startswith("?")}
        if not lacking:
            raise
        _git(at, path, *words, "--no-checkout", str(tree), revision)
        _git(at, str(tree), "read-tree", "HEAD")
        entries = (entry.split(maxsplit=3) for entry in _git(at, str(tree), "ls-files", "-sz").split("\0") if entry)
        absent = [name for _, content, _, name in entries if content in lacking]
        _git(at, str(tree), "update-index", "--skip-worktree", "--", *absent)
        _git(at, str(tree), "checkout-index", "--all", "--index")
        sys.stderr.write(f"rankproof: --at {at}: left out, since {path} lacks their content: {', '.join(absent)}\n")


@contextlib.contextmanager
def put_first(stack: str, at: str | None) -> Iterator[Path | None]:
    """While a stack is judged: its checkout is first on the path. Nothing where none is given."""
    os.environ.pop(ROOT, None)
    if at is None:
        yield None
        return
    with checked_out(at) as path:
        yield first(stack, path)


def first(stack: str, at: str) -> Path:
    """Put a checkout first on the path of this process and of those that it starts; returns the folder on the path.

    Raises:
        Refused: where there is nothing of the stack, or the stack's code cannot come from a checkout.
    """
    root = Path(os.environ.get(ROOT) or at).resolve()
    name = stack.partition("==")[0].removesuffix("-distributed-optimizer")
    kind, _, attribute = stack.partition(":")
    if name not in PACKAGES and (not attribute or kind == "launched"):
        problem = f"does not go with --stack {stack}, which is not imported from a checkout"
        raise refuse("--at", at, problem, f"give one of {', '.join(PACKAGES)}, or package.module:Name")
    wanted = PACKAGES.get(name, "")
    roots = [each for each in (root, root / "src") if (each / wanted).is_dir()]
    if not roots:
        problem = f"has neither {wanted} nor src/{wanted}" if wanted else "is no folder"
        raise refuse("--at", at, problem, f"give the folder that has {wanted or 'the package'}")
    for each in reversed(roots):
        sys.path[:] = [str(each), *(other for other in sys.path if other != str(each))]
    had = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [str(each) for each in roots]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *(each for each in had if each and each not in own)])
    os.environ[ROOT] = str(root)
    return root


def refuse_other(subject: Party, root: Path, at: str) -> None:
    """Refuse to judge a stack whose code does not come from the checkout.

    Raises:
        Unreachable: with what answers in its place.
    """
    places = {each.path for each in answering_of(subject)}
    if not any(Path(place).is_relative_to(root) for place in places):
        told = ", ".join(sorted(places)) or "code that could not be found"
        raise Unreachable(
            f"--at {at}: {subject.name} is answered by {told}, and nothing of it lies in {root}; an adapter of your "
            'own names the package that it asks: package = "NAME" in its class'
        )


def in_interpreter(python: str, words: Sequence[str]) -> None:
    """Go on in another interpreter with these words of a command; returns where this one is it already.

    Its own packages come first; the suite is its own too, or a checkout of the suite that comes last.

    Raises:
        Refused: where there is no such interpreter.
    """
    if Path(python).absolute() == Path(sys.executable).absolute():
        return
    if not os.access(python, os.X_OK) or Path(python).is_dir():
        raise refuse("--python", python, "cannot be run", "give the path of an interpreter, such as .venv/bin/python")
    sys.stdout.flush()
    sys.stderr.flush()
    suite = str(Path(__file__).parents[2])
    os.execv(python, [python, "-P", "-c", _BOOTSTRAP, suite, *words])


def _git(at: str, path: str, *words: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", path, "-c", "core.hooksPath=/dev/null", *words],
            env=kept, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise refuse("--at", at, f"needs git: {error.strerror}", "give the folder of a checkout") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise refuse("--at", at, f"git says: {said}", "give a folder, or PATH@REV of a repository")
    return done.stdout

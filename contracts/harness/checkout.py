"""The checkout whose code answers, `--at PATH` or `--at PATH@REV`: first wherever Python looks, here and in every
process that is started from here, so that the questions about launches and topology go to it too."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.spec import Party, Refused, Unreachable, refuse
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
        problem = "has three dots, which name a merge base and no commit"
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
    asked = Repository(path=path, given=at)
    with asked.worktree(revision) as tree:
        yield str(tree / asked.git("rev-parse", "--show-prefix").strip())


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of a user, in which nothing is altered but that worktrees of it come and go.

    Args:
        path: a folder in it.
        given: what the user wrote, and for which field, as a refusal quotes it.
    """

    path: str
    given: str
    field: str = "--at"
    remedy: str = "give a folder, or PATH@REV of a repository"

    def git(self, *words: str, path: str | None = None) -> str:
        """What git prints.

        Raises:
            Refused: with its words, where it ends with an error.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            done = subprocess.run(
                ["git", "-C", path or self.path, "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=off", *words],
                env=kept, capture_output=True, text=True, errors="surrogateescape", check=False,
            )  # fmt: skip
        except OSError as error:
            raise refuse(
                self.field, self.given, f"needs git: {error.strerror}", "give the folder of a checkout"
            ) from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise refuse(self.field, self.given, f"git says: {said}", self.remedy)
        return done.stdout

    @contextlib.contextmanager
    def worktree(self, revision: str) -> Iterator[Path]:
        """The root of a worktree of a revision, which is taken away in the end."""
        with tempfile.TemporaryDirectory(prefix="rankproof-") as folder:
            tree = Path(folder, Path(self.path).resolve().name or "tree")
            try:
                self._add(tree, revision)
                yield tree
            finally:
                with contextlib.suppress(Exception):
                    self.git("worktree", "remove", "--force", str(tree))

    def _add(self, tree: Path, revision: str) -> None:
        """Make it; files whose content the repository lacks, as a snapshot may, are left out and named."""
        words = ("worktree", "add", "--quiet", "--detach")
        try:
            self.git(*words, str(tree), revision)
        except Refused:
            walked = self.git("rev-list", "--objects", "--missing=print", "--no-walk", revision, "--")
            lacking = {line[1:] for line in walked.splitlines() if line.startswith("?")}
            if not lacking:
                raise
            self.git(*words, "--no-checkout", str(tree), revision)
            self.git("read-tree", "HEAD", path=str(tree))
            listed = self.git("ls-files", "-sz", path=str(tree)).split("\0")
            entries = (entry.split(maxsplit=3) for entry in listed if entry)
            absent = [name for _, content, _, name in entries if content in lacking]
            self.git("update-index", "--skip-worktree", "--", *absent, path=str(tree))
            self.git("checkout-index", "--all", "--index", path=str(tree))
            left = f"left out, since {self.path} lacks their content: {', '.join(absent)}"
            sys.stderr.write(f"rankproof: {self.field} {self.given}: {left}\n")


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

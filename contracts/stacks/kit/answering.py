"""Who answers under the name of a package: where its code lies, which version, commit and files that is.

Standard library only, and nothing is imported to find out: a package that raises at import is found all the same.
The version belongs to the code which an import finds, not of a distribution that is installed beside it.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

from contracts.spec.records import Answering

JUDGE = "judge"
_OURS = __name__.partition(".")[0]
_GIT_S = 20.0
_PARTS = ("MAJOR", "MINOR", "PATCH", "PRE_RELEASE")  # of Megatron-Core's package_info.py
_TEXTS = ("assets/version.txt", "version.txt", "VERSION")  # beside a package that reads its version from its metadata


def located(module: str) -> Path | None:
    """The folder of a package or the file of a module that an import would find; None where it would find none."""
    loaded = getattr(sys.modules.get(module), "__spec__", None)
    spec = loaded or _spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None


def version_of(distribution: str, module: str) -> str | None:
    """The version of the code that an import of `module` finds; None where there is none.

    Code that is not the installed distribution's has a local version, which names its commit or its files:
    `0.20.0+gd98e8a64d`, with `.dirty` where the checkout has changes.
    """
    place = located(module)
    if place is None:
        return None
    installed = _installed(distribution, place)
    if installed is not None:
        return installed
    commit, dirty = commit_of(place)
    local = f"g{commit[:9]}{'.dirty' if dirty else ''}" if commit else f"files.{digest_of(place)[:8]}"
    said = _declared(place) or _metadata(distribution) or "0"
    return f"{said}{'.' if '+' in said else '+'}{local}"


def answering_of(party: object, process: str = JUDGE) -> tuple[Answering, ...]:
    """What a party says of the code that answers for it, and the code of an adapter of one's own, which may name the
    package that it asks: `package = "litgpt"`."""
    kind, said = type(party), tuple(getattr(party, "answering", ()))
    if not said and isinstance(asked := getattr(party, "package", None), str):
        said = answering(asked, version_of(asked, asked) or "", process)
    if kind.__module__.partition(".")[0] == _OURS or kind.__module__ == "__main__":
        return said
    package = kind.__module__.partition(".")[0]
    whole = package if getattr(_spec(package), "has_location", False) else kind.__module__  # a namespace is no package
    return (*said, *answering(whole, str(getattr(party, "version", "")), process, kind.__module__))


def answering(module: str, version: str, process: str, adapter: str = "") -> tuple[Answering, ...]:
    """What this process would import under a module's name; nothing where it finds none.

    Args:
        adapter: the module of an adapter, where it is one's: what it imports from beside it is a part of it.
    """
    place = located(module)
    if place is None:
        return ()
    commit, dirty = commit_of(place)
    begins = located(adapter) if adapter else None
    digest = digest_of(place, beside=_beside(begins, place.parents[module.count(".")]) if begins else ())
    return (
        Answering(
            process=process, module=module, path=str(place), version=version, digest=digest, commit=commit, dirty=dirty,
            torch=_metadata("torch") or "", python=f"{platform.python_version()} {sys.executable}",
        ),
    )  # fmt: skip


@functools.cache
def digest_of(place: Path, beside: tuple[Path, ...] = ()) -> str:
    """The SHA-256 of a file, or of what a package has to be run: its files but for what was compiled from them; and of
    the files beside it."""
    digest = hashlib.sha256()
    own = [place] if place.is_file() else sorted(_files(place))
    for file in (*own, *(each for each in beside if each not in own)):
        name = file.relative_to(place).as_posix() if file.is_relative_to(place) and file != place else file.name
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def _beside(module: Path, root: Path) -> tuple[Path, ...]:
    """The files below a folder that a module imports from there, and that these import. What is installed beside it is
    another package's."""
    waiting = [] if any(root.glob("*.dist-info")) else [module / "__init__.py" if module.is_dir() else module]
    found = {*waiting}
    while waiting:
        new = {*_imported(waiting.pop(), root)} - found
        found |= new
        waiting += new
    return tuple(sorted(found))


def _imported(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level = getattr(node, "level", 0)
        package = file.relative_to(root).parts[:-level] if level else ()
        for each in node.names:
            at = root
            for part in (*package, *(getattr(node, "module", "") or "").split("."), *each.name.split(".")):
                at /= part
                yield from (held for held in (at.with_suffix(".py"), at / "__init__.py") if part and held.is_file())


@functools.cache
def commit_of(place: Path) -> tuple[str, bool]:
    """The commit of the checkout that a package or module lies in, and whether anything in the checkout is changed;
    an empty commit where git does not keep the place: an environment below a checkout is not of it."""
    folder = place if place.is_dir() else place.parent
    if not _git(folder, "ls-files", "--", place.name if place.is_file() else "."):
        return "", False
    return _git(folder, "rev-parse", "HEAD").strip(), bool(_git(folder, "status", "--porcelain"))


def _git(folder: Path, *words: str) -> str:
    """What git says in a folder; nothing where it has nothing to say of it. Variables of a hook do not lead it away."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=kept, capture_output=True, text=True, timeout=_GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _spec(module: str) -> ModuleSpec | None:
    """The spec of a module, found as an import finds it, without importing what it lies in."""
    path, spec = None, None
    names = module.split(".")
    for number in range(1, len(names) + 1):
        name = ".".join(names[:number])
        spec = next(filter(None, (_asked(finder, name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _asked(finder: object, name: str, path: Iterable[str] | None) -> ModuleSpec | None:
    find = getattr(finder, "find_spec", None)
    found = None if find is None else find(name, path, None)
    return found if isinstance(found, ModuleSpec) else None


def _installed(distribution: str, place: Path) -> str | None:
    """The version of the distribution whose own files lie there; None for a checkout, installed or not."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    inside, root = place / "__init__.py" if place.is_dir() else place, Path(str(found.locate_file(""))).resolve()
    own = inside.is_relative_to(root) and inside.relative_to(root).as_posix() in map(str, found.files or ())
    return found.version if own else None


def _declared(place: Path) -> str:
    """The version that a source tree says it has, read and not run; empty where it says none."""
    for name in ("package_info.py", "__init__.py", "version.py", "_version.py"):
        said = _assigned(place / name)
        if isinstance(version := said.get("__version__"), str):
            return version
        if all(part in said for part in _PARTS[:3]):
            return ".".join(str(said[part]) for part in _PARTS[:3]) + str(said.get(_PARTS[3], ""))
    texts = [place.parent / name for name in _TEXTS]
    return next((text.read_text(encoding="utf-8").strip() for text in texts if text.is_file()), "")


def _assigned(file: Path) -> Mapping[str, object]:
    """The names that a module gives a literal."""
    try:
        body = ast.parse(file.read_bytes()).body if file.is_file() else []
    except (SyntaxError, ValueError):
        return {}
    return {
        target.id: node.value.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _metadata(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _files(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix not in (".pyc", ".pyo") and "__pycache__" not in file.parts:
            yield file

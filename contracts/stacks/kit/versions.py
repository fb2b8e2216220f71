"""The installed version of a package, and what is said of one on which its adapter was never tried.

Standard library only, like the `stack` module of every adapter: a package is imported when the first question comes.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from contracts.spec import Abilities, Layout, Moved, NotOffered, Refused, Unreachable, install_by
from contracts.spec.records import Answering
from contracts.stacks.kit.answering import JUDGE, answering, version_of
from contracts.stacks.kit.moved import there
from contracts.stacks.without_cuda import unforked

_SUITE = str(Path(__file__).parents[2])
_IMPORTS = ("<frozen importlib", str(importlib.__file__))


class Misfit(LookupError):
    """The installed package has other names than the adapter knows; of an untried version that is no defect."""


_MISFITS = (AttributeError, ImportError, KeyError, Misfit, NameError, TypeError)


def present(package: str, wanted: str | None, newest: str, command: str) -> str:
    """The version of a package that this interpreter imports, which is the wanted one if one is.

    Args:
        command: what makes an environment, with `{}` where the version stands.

    Raises:
        Unreachable: when there is none or another in this interpreter, with the command.
    """
    found = version_of(package, package)
    if found is not None and wanted in (None, found):
        return found
    here, other = f"{package} {found}" if found else f"no {package}", wanted or newest
    make = f"`{command.format(other)}` makes one for {other}, and its bin/rankproof judges it"
    pip = f"`pip install {package}=={other}`, or name the interpreter that has it by --python"
    raise Unreachable(f"there is {here} in this interpreter: {install_by(make, pip)}")


def labels(said: Mapping[str, str], version: str, tried: Iterable[str]) -> dict[str, str]:
    """The labels of the questions; of an untried version each says that it is."""
    if version in tried:
        return dict(said)
    never = f"untried: {version} was never tried, {', '.join(tried)} were"
    return {question: "; ".join(filter(None, (never, words))) for question, words in said.items()}


class Package:
    """A stack that is a package of this interpreter, answered by functions with the names of the questions.

    A version that is in no list of `tried` says so in every label and claims nothing; what the adapter does not
    find in it is not run, in one cause for each name.

    Raises:
        Unreachable: when the package, or the requested version, is not installed in this interpreter.
    """

    name: str
    package: str = ""
    """What is imported, where a subclass has a name of its own."""
    layouts: frozenset[Layout] = frozenset()
    conventions: Mapping[str, str] = {}
    of: ClassVar[Mapping[str, str]]
    """Question → the module whose function of that name answers it."""
    said: ClassVar[Mapping[str, str]]
    """Question → how its answer comes about."""
    tried: ClassVar[tuple[str, ...]]
    """The versions on which every answer was tried, newest first."""
    limited: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Version → the questions that were tried only on it."""
    can: ClassVar[Abilities | None] = None
    command: ClassVar[str]
    """What makes an environment, with `{}` for the version."""

    def __init__(self, version: str | None = None) -> None:
        self.version = present(self.package or self.name, version, self.tried[0], self.command)
        asked = self.limited.get(self.version, frozenset(self.of))
        self.offers = frozenset(asked)
        known = self.version in self.tried or self.version in self.limited
        self.labels: Mapping[str, str] = labels(
            {question: self.said[question] for question in asked}, self.version, [self.version] if known else self.tried
        )
        self.abilities = self.can if self.version in self.tried else None
        if self.can is not None and not known:
            self.abilities = replace(self.can, claims=False)

    @functools.cached_property
    def answering(self) -> tuple[Answering, ...]:
        """The package that this process imports."""
        return answering(self.package or self.name, self.version, JUDGE)

    def module_of(self, question: str) -> str:
        """The module whose function answers a question on this version."""
        return type(self).of[question]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in type(self).of:
            raise AttributeError(f"{type(self).__name__} has no {name!r}, and it is no question that it answers")

        def answer(*given: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(self.module_of(name)), name)(*given, **named)

        answer = unforked(self, name, answer)
        known = self.version in self.tried or self.version in self.limited
        return answer if known else falls_back(answer, f"{self.name} {self.version}", self.tried)


@contextlib.contextmanager
def fitted(what: str) -> Iterator[None]:
    """While the package makes something out of what the adapter gives it. Input that it does not take is a misfit.

    Raises:
        Misfit: for anything that is raised inside and is no answer.
    """
    try:
        yield
    except (Misfit, NotOffered, Refused, Unreachable):
        raise
    except Exception as error:
        raise Misfit(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def falls_back(answer: Callable[..., Any], who: str, tried: Iterable[str]) -> Callable[..., Any]:
    """An answer of an untried version. What the adapter does not find there has moved: not run, in words.

    Errors of the package itself are reported as on every version; only where the adapter touches it does it fall back.
    """

    @functools.wraps(answer)
    def guarded(*given: Any, **named: Any) -> Any:
        try:
            return answer(*given, **named)
        except (Unreachable, *_MISFITS) as error:
            if not isinstance(error, Unreachable) and not _of_the_adapter(error.__traceback__):
                raise
            words = " ".join(str(error).split())
            place = "; ".join(filter(None, (f"{type(error).__name__}: {words}", there(error))))
            raise Moved(
                f"{who} was never tried, {', '.join(tried)} were, and the adapter does not find its way in it: {place}"
            ) from error

    return guarded


class FallingBack:
    """A party on an untried version: each of its answers falls back."""

    def __init__(self, party: Any, who: str, tried: Iterable[str]) -> None:
        self._party, self._who, self._tried = party, who, tuple(tried)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._party, name)
        return falls_back(found, self._who, self._tried) if name in self._party.offers else found


def _of_the_adapter(trace: TracebackType | None) -> bool:
    """Whether the last frame is one of this suite; those of an import, and of the look-up of a name, do not count."""
    last = ""
    while trace is not None:
        code, trace = trace.tb_frame.f_code, trace.tb_next
        last = last if code.co_filename.startswith(_IMPORTS) or code.co_name == "__getattr__" else code.co_filename
    return last.startswith(_SUITE)

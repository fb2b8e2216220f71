"""A mutant that is one function: what a stack runs in place of one of its own."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference

_ABSENT = object()
_REFERENCE = "contracts.stacks.reference."


def broken(
    owner: type | ModuleType, name: str, *kills: str, bugs: tuple[str, ...] = (), leanest: str | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Make a mutant of a function, which replaces `owner.name` and gets the former function first.

    Each of `kills` is "ID[case]: words". The mutant is a class, by whose name another process finds it too. An owner
    that answers questions itself (the reference, the court) is derived from. Any other is changed while the mutant
    answers, and nobody else's answer is made meanwhile; subclasses of the owner are changed with it.
    """

    def enter(change: Callable[..., Any]) -> type:
        static = inspect.getattr_static(owner, name)
        changed = _as_of(static, change)
        if isinstance(owner, type) and hasattr(owner, "offers"):
            made = type(change.__name__, (owner,), {name: changed})
        else:
            answers = _answers(functools.partial(_replaced, owner, name, changed))
            made = type(change.__name__, (Reference,), {**answers, "replaces": (owner, name)})
        made.__doc__, made.__module__, made.__qualname__ = change.__doc__, change.__module__, change.__qualname__
        for kill in kills:
            id, _, rest = kill.partition("[")
            case, _, says = rest.partition("]: ")
            mutant(of=id, case=case, says=says, bugs=bugs, leanest=leanest)(made)
        return made

    return enter


def _as_of(static: Any, change: Callable[..., Any]) -> Any:
    """The change as an attribute of the kind that it replaces."""
    kind = type(static) if isinstance(static, (staticmethod, classmethod, property)) else None
    former = static.fget if isinstance(static, property) else static.__func__ if kind else static

    def changed(*args: Any, **named: Any) -> Any:
        return change(former, *args, **named)

    return kind(changed) if kind else changed


def _answers(replaced: Callable[[], AbstractContextManager[None]]) -> dict[str, Any]:
    """The public functions of the reference, each of which runs with something replaced."""

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def asked(*args: Any, **named: Any) -> Any:
            with replaced():
                return function(*args, **named)

        return asked

    public = {name: getattr(Reference, name) for name in dir(Reference) if not name.startswith("_")}
    return {name: within(each) for name, each in public.items() if inspect.isfunction(each)}


@contextmanager
def _replaced(owner: Any, name: str, changed: Any) -> Iterator[None]:
    """Inside, `owner.name` is `changed`. A question that asks another finds it so and leaves it so."""
    former = vars(owner).get(name, _ABSENT)
    if former is changed:
        yield
        return
    try:
        setattr(owner, name, changed)
        _forget()
        yield
    finally:
        if former is not _ABSENT:
            setattr(owner, name, former)
        elif name in vars(owner):
            delattr(owner, name)
        _forget()


def _forget() -> None:
    """Drop every result that the reference keeps, and every graph that is compiled: they do not know of a change.

    What is kept for the whole process, such as another interpreter, stands in a cache without a bound.
    """
    for module in [each for name, each in sys.modules.items() if name.startswith(_REFERENCE)]:
        for kept in vars(module).values():
            if isinstance(kept, functools._lru_cache_wrapper) and kept.cache_parameters()["maxsize"] is not None:
                kept.cache_clear()
    if compiler := sys.modules.get("torch._dynamo"):
        compiler.reset()

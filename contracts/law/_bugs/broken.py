"""A mutant that is one function, or one class: what a stack runs in place of one of its own."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
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
    that answers questions itself (the reference) is derived from, and so is a class of mutants, as by
    `derived`. Any other is changed while the mutant answers, and nobody else's answer is made meanwhile; subclasses of
    the owner are changed with it.
    """

    def enter(change: Callable[..., Any]) -> type:
        changed = _as_of(inspect.getattr_static(owner, name), change)
        if isinstance(owner, type) and hasattr(owner, "offers"):
            made = type(change.__name__, (owner,), {name: changed})
        elif isinstance(owner, type) and "_bugs" in owner.__module__:
            with_change = _named(type("", (owner,), {name: changed}), change)
            return derived(*kills, bugs=bugs, leanest=leanest)(with_change)
        else:
            made = _answering(change.__name__, owner, name, changed, replaces=[name])
        return _entered(made, change, kills, bugs, leanest)

    return enter


def derived(
    *kills: str, bugs: tuple[str, ...] = (), leanest: str | None = None, conventions: Mapping[str, str] | None = None
) -> Callable[[type], type]:
    """Make a mutant of a class for a bug in several functions: while the mutant answers, each new object of the class
    that it derives from is one of it. Objects of other subclasses stay as they are, unless such a class was made at run
    time.

    `conventions` are what the mutant declares beside its bug.
    """

    def enter(change: type) -> type:
        ours = [each for each in change.__mro__ if each is change or "_bugs" in each.__module__]
        owner: Any = change.__mro__[len(ours)]
        former = vars(owner).get("__init__")

        def changed(self: Any, *args: Any, **named: Any) -> None:
            if _becomes(self, change, owner):
                self.__init__(*args, **named)
            else:
                (former.__get__(self) if former else super(owner, self).__init__)(*args, **named)

        held = {name: value for each in ours for name, value in vars(each).items() if hasattr(owner, name)}
        replaces = [name for name, value in held.items() if inspect.isfunction(value)]
        made = _answering(change.__name__, owner, "__init__", changed, replaces)
        if conventions:
            made.conventions = conventions  # type: ignore[attr-defined]  # of a class that is made here
        return _entered(made, change, kills, bugs, leanest)

    return enter


def with_attributes(
    name: str, story: str, *kills: str, owner: type = Reference, bugs: tuple[str, ...] = (), leanest: str | None = None,
    **attributes: Any,
) -> type:  # fmt: skip
    """Make a mutant that differs from `owner` in class attributes only, such as a convention that it declares and does
    not follow.

    `name` and `story` are the name and the docstring of its class, `attributes` what differs. A stack, or a mutant of
    one, is subclassed as it is; any other class is replaced as by `derived`.
    """
    module = sys._getframe(1).f_globals["__name__"]
    made = type(name, (owner,), {**attributes, "__doc__": story, "__module__": module})
    if hasattr(owner, "offers"):
        return _entered(made, made, kills, bugs, leanest)
    return derived(*kills, bugs=bugs, leanest=leanest)(made)


def _becomes(made: Any, change: type, owner: type) -> bool:
    """Whether a new object of `owner`, or of a class made of it at run time, is from now on one of `change`."""
    kind: Any = type(made)
    if kind is owner:
        object.__setattr__(made, "__class__", change)  # which may be frozen
        return True
    if issubclass(kind, change) or owner not in kind.__bases__:
        return False
    if getattr(sys.modules[kind.__module__], kind.__name__, None) is kind:
        return False
    kind.__bases__ = tuple(change if each is owner else each for each in kind.__bases__)
    return True


def _answering(name: str, owner: Any, attribute: str, changed: Any, replaces: list[str]) -> type:
    """The reference, with `owner.attribute` changed while it answers. `replaces` are the functions with the bug."""
    answers = _answers(functools.partial(_replaced, owner, attribute, changed))
    return type(name, (Reference,), {**answers, "replaces": [(owner, each) for each in replaces]})


def _entered(made: type, change: Any, kills: tuple[str, ...], bugs: tuple[str, ...], leanest: str | None) -> type:
    """Put a mutant into the law under the name and with the story of its change."""
    _named(made, change)
    for kill in kills:
        id, _, rest = kill.partition("[")
        case, _, says = rest.partition("]: ")
        mutant(of=id, case=case, says=says, bugs=bugs, leanest=leanest)(made)
    return made


def _named(made: type, change: Any) -> type:
    """A class under the name and with the story of its change."""
    for name in ("__doc__", "__module__", "__name__", "__qualname__"):
        setattr(made, name, getattr(change, name))
    return made


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

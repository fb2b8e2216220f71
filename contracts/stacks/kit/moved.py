"""What stands where an adapter looked for a name and did not find it, in words."""

import difflib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable

_NAMES = 8
_ARGUMENT = re.compile(r"(?P<call>[\w.<>]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")


def there(error: BaseException) -> str:
    """The name that was looked for, where, and the names there now; empty for an error that is about no name."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _of_modules(error.name)
    if found := _IMPORT.search(str(error)):
        return _told(found["name"], found["module"], _public(sys.modules.get(found["module"])))
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        holder = error.obj if inspect.ismodule(error.obj) or inspect.isclass(error.obj) else type(error.obj)
        where = holder.__name__ if inspect.ismodule(holder) else f"{holder.__module__}.{holder.__qualname__}"
        return _told(error.name, where, _public(holder))
    if found := _ARGUMENT.search(str(error)):
        return _of_arguments(found["call"], found["name"])
    return ""


def _of_modules(name: str) -> str:
    parent = name.rpartition(".")[0]
    while parent and parent not in sys.modules:
        parent = parent.rpartition(".")[0]
    found = getattr(sys.modules.get(parent), "__path__", ())
    return _told(name[len(parent) + 1 :], parent, (each.name for each in pkgutil.iter_modules(found))) if parent else ""


def _of_arguments(call: str, name: str) -> str:
    """The arguments of a function or class by its qualified name, in whichever module has it."""
    first, *rest = call.removesuffix(".__init__").split(".")
    for module in [*sys.modules.values()]:
        found = vars(module).get(first) if inspect.ismodule(module) else None
        for each in rest:
            found = getattr(found, each, None)
        if callable(found) and getattr(found, "__qualname__", "") == ".".join((first, *rest)):
            return _told(name, f"{found.__module__}.{found.__qualname__}", inspect.signature(found).parameters)
    return ""


def _public(holder: object) -> list[str]:
    return [name for name in dir(holder) if not name.startswith("_")] if holder is not None else []


def _told(name: str, where: str, names: Iterable[str]) -> str:
    """The nearest names first; what is over the limit is counted."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=_NAMES, cutoff=0.4)
    shown = [*near, *(each for each in known if each not in near)][:_NAMES]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"looked for {name} in {where}, which has {', '.join(shown) or 'nothing'}{more}"

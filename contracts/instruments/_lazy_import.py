"""Lazy packages: a module is imported when something of it is first used."""

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Late(ModuleType):
    """Stands for a module, and hands everything on to it. Importing it imports nothing."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]  # pytest's monkeypatch restores a module from it
        return vars(importlib.import_module(self.__name__))

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(importlib.import_module(self.__name__), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(importlib.import_module(self.__name__), name)


def reader(package: str, noun: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose modules are imported when something of them is first used.

    Args:
        package: its full name.
        noun: what the error message calls a module, when there is none of that name.
    """

    def read(name: str) -> ModuleType:
        if name.startswith("__") or importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"there is no {noun} {name}")
        return Late(f"{package}.{name}")

    return read

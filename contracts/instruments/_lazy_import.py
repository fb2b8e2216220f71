"""Lazy packages: a module is imported when its name is first used."""

import importlib
from collections.abc import Callable
from types import ModuleType


def reader(package: str, noun: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose modules are imported when their name is first used.

    Args:
        package: its full name.
        noun: what the error message calls a module, when there is none of that name.
    """

    def read(name: str) -> ModuleType:
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name == f"{package}.{name}":
                raise AttributeError(f"there is no {noun} {name}") from None
            raise

    return read

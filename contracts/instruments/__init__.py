"""Instruments: what is observed of a machine, an environment, a process, a tensor. No judgement is made here.

`from contracts import instruments` loads none of them: a module is imported when its name is first used, so that a
check on numbers can be read, planned and listed where there is no torch.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contracts.instruments import fixtures as fixtures
    from contracts.instruments import graphs as graphs
    from contracts.instruments import numerics as numerics
    from contracts.instruments import oracles as oracles
    from contracts.instruments import traffic as traffic


def __getattr__(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"{__name__}.{name}":
            raise AttributeError(f"there is no instrument {name}") from None
        raise

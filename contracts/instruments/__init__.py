"""Instruments: they observe a machine, an environment, a process or a tensor. They do not judge.

`from contracts import instruments` loads none of them. A module is imported when its name is first used, so that checks
on numbers can be planned and listed without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.instruments._lazy_import import reader

if TYPE_CHECKING:
    from contracts.instruments import fixtures as fixtures
    from contracts.instruments import graphs as graphs
    from contracts.instruments import numerics as numerics
    from contracts.instruments import oracles as oracles
    from contracts.instruments import safetensors_files as safetensors_files
    from contracts.instruments import traffic as traffic
    from contracts.instruments import work as work


__getattr__ = reader(__name__, "instrument")

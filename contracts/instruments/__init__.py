"""Instruments: they observe a machine, an environment, a process or a tensor. They do not judge.

`from contracts.instruments import numerics` imports none of it yet: a module is imported when something of it is first
used, so that checks on numbers can be planned and listed without torch.
"""

from contracts.instruments._lazy_import import reader

__getattr__ = reader(__name__, "instrument")

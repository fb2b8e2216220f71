"""Why a stack does not answer: whose lack it is."""

from collections.abc import Mapping
from typing import Literal

Lack = Literal["stack", "device", "adapter", "case"]
"""stack: the stack has nothing of the kind. device: it has, and not on this device. adapter: the adapter does not reach
it yet. case: the case asks for more than what it is about, and for that the stack has no answer: a layer that is not
the subject, a layout where both are the same ranks."""
LACKS: Mapping[Lack, str] = {
    "stack": "the stack lacks it",
    "device": "this device lacks it",
    "adapter": "the adapter does not reach it yet",
    "case": "the case is shaped otherwise",
}

"""Whether this process can still find a bug: it judges one of the suite's own before it judges anybody.

A wrong stack is conformant wherever checks have lost their power to fail: assertions that are stripped, a comparison
that somebody replaced. So each process that judges shows first that it catches a known bug, and again at the end.
"""

import array
import functools
from collections.abc import Mapping

from contracts.contract import LAW
from contracts.court.judge import judge
from contracts.court.party import Broken
from contracts.harness.families import read_checks
from contracts.instruments import numerics
from contracts.spec import Layout

_ID, _CASE, _SAYS = "PAT-01", "nam56r", "layer 2 (1-based) is ablock, expected eblock (E)"


class OneBlockForAll:
    """The known bug: a stack that builds every layer from the first letter of the pattern."""

    name, version = "the known bug", "1"
    offers = frozenset({"blocks"})
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        return ("ablock",) * depth


def lost(*, numbers: bool) -> str:
    """Why this process cannot be trusted to find a bug, in words; empty where it finds the known ones.

    Args:
        numbers: judge a tensor with a wrong element as well, and ones that are not finite, which needs torch.
    """
    read_checks(_ID)
    result = judge(LAW.contracts[_ID], _CASE, OneBlockForAll())
    if result.outcome != "violated" or result.words != _SAYS:
        return f"{_ID}[{_CASE}] {result.outcome} on a stack with a known bug: {result.words or 'no words'}"
    return _lost_of_numbers() if numbers else ""


at_the_start = functools.cache(lost)
"""The same, once in each process."""


def refuse_without(*, numbers: bool) -> None:
    """Do not continue without the power to fail.

    Raises:
        Broken: where a known bug is not found.
    """
    if words := lost(numbers=numbers):
        raise Broken(f"this process would not find a bug, so that its verdict would say nothing: {words}")


def _lost_of_numbers() -> str:
    from contracts.spec import FLOAT32, Array

    def held(*elements: float) -> Array:
        return Array(dtype="float32", shape=(len(elements),), data=array.array("f", elements).tobytes())

    right, nan = held(1.0, 2.0, 3.0), float("nan")
    for what, got, want in (
        ("a wrong element", held(1.0, 2.0, 3.1), right),
        ("nan in an answer", held(1.0, nan, 3.0), right),
        ("nan that was expected", held(1.0, nan, 3.0), held(1.0, nan, 3.0)),
    ):
        for compare in (numerics.differences, numerics.gradient_differences):
            if not compare("known", {"x": got}, {"x": want}, FLOAT32):
                return f"{compare.__name__} sees no difference in {what}"
    return ""

"""A planned case as a test of pytest, and what a session's options say about judging it."""

import importlib.util
from pathlib import Path

import pytest

from contracts.court import deviations, report
from contracts.court.judge import DEADLINE_S, NO_TORCH
from contracts.harness import parties
from contracts.harness.gate import Gate
from contracts.spec import Party, codec, refuse
from contracts.spec.records import Deviation, Item
from rankproof import options

PROPERTY = "rankproof.result"
CODE = "rankproof.code"


class Promise:
    """One planned case as a test, which calls it."""

    def __init__(self, gate: Gate, item: Item, node: pytest.Item | None = None) -> None:
        self._gate, self._item, self._node = gate, item, node

    def __call__(self) -> None:
        """Judge it. The test's report carries the result, and pytest's outcome follows from it."""
        result = self._gate.judge(self._item)
        if self._node is not None:  # a test of the session's plan, and not one of a project's own
            self._node.user_properties += [(PROPERTY, codec.dumps(result)), (CODE, self._gate.code)]
        told = report.details(self._gate.run(), result)
        words = "\n".join(f"{label:>12}  " + text.replace("\n", f"\n{'':14}") for label, text in told)
        if result.outcome == "violated":
            declared = self._gate.declared(result)
            if declared is not None:
                pytest.xfail(f"declared by {declared.owner} until {declared.expires}: {declared.reason}")
            # The first line is all that pytest's short summary shows; the test's name has the item.
            pytest.fail(f"violated: {result.words.splitlines()[0]}\n{result.item} is violated\n{words}", pytrace=False)
        if result.outcome == "broken":
            pytest.fail(f"broken: {result.words}\n{words}", pytrace=False)
        if result.outcome != "holds":
            pytest.skip(f"{result.outcome}: {result.words}")


def without_torch() -> tuple[pytest.MarkDecorator, ...]:
    """The mark of a contract about numbers where torch is not installed."""
    return () if importlib.util.find_spec("torch") else (pytest.mark.skip(NO_TORCH),)


def deadline_of(config: pytest.Config) -> float:
    """The seconds that one case may take.

    Raises:
        Refused: for what is no time.
    """
    given = options.setting(config, "deadline")
    try:
        seconds = DEADLINE_S if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise refuse("deadline", given, "is not a time", "give the seconds that one case may take")
    return seconds


def assistants_of(config: pytest.Config, subject: Party, *, quick: bool) -> tuple[tuple[str, Party], ...]:
    return parties.assistants(subject, tuple(options.setting(config, "with") or ()), quick=quick)


def deviations_of(file: Path | None) -> tuple[Deviation, ...]:
    return () if file is None else deviations.load(file)

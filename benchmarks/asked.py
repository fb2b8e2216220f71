"""Which fields of which questions always have the same value, whatever contract asks: what such a field does is unseen.

    python -m benchmarks.asked snapshots/asked.md    # the page: contracts without numbers, and those of a single pass
    python -m benchmarks.asked --all                 # every contract; minutes
    python -m benchmarks.asked --cases snapshots/asked_of_numbers.md    # read off the cases, nothing is asked

With `--cases` the fields come from the recipes and executions of each case about numbers, on one rank and on
several, and the pairs of features that no case has follow. Changes that a check makes to them are not seen. Otherwise
cases are asked of a stack that writes down what it is asked. It answers what is cheap as the reference
does; to what would compute (a training run, a pass, a block) it gives numbers that mean nothing, so that a check goes
on to its next question until it finds them wrong. What a check asks only of right numbers is not seen, so that a field
may have more values than are counted here. `tests_unit/test_asked.py` holds the page.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from contracts.contract import LAW
from contracts.court import pairs
from contracts.court.judge import judge
from contracts.harness.families import read_checks
from contracts.instruments import fixtures, numerics
from contracts.spec import (
    Array,
    Arrays,
    BlockCall,
    BlockRun,
    Execution,
    NotOffered,
    Pass,
    Recipe,
    Session,
    Step,
    Tokens,
    Trained,
    questions,
)
from contracts.stacks.reference.stack import Reference

CHEAP = frozenset({"built", "initial", "samples", "sample"})
"""Questions about numbers that the reference answers at once."""
DEAR = frozenset({"started", "allocator_seen", "fabric_pass", "live_mesh", "devices", "run_receipts", "observed"})
GIVEN = {"given"}  # a value that has fields of its own
LOSSES = ("total", "lm", "aux", "z", "mtp")
TITLE = """# Fields with one value

`python -m benchmarks.asked snapshots/asked.md` writes it; see its docstring. Each question, how many of
its fields have one value in every case, and which.
"""


OF_LAUNCHES = ("recipe.author_spec", "recipe.checkpoint", "recipe.data", "recipe.degrees", "recipe.family",
               "recipe.hbm_gb", "recipe.modes")  # fmt: skip
"""What no step reads: an execution has the degrees, a session the folders."""
OF_NUMBERS = """# What no case about numbers asks

`python -m benchmarks.asked --cases snapshots/asked_of_numbers.md` writes it; see its docstring. Of the recipes and
executions in the cases of contracts that ask each question: how many fields have one value, and which.
"""


class Asked:
    """Question and field → its values, as texts."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, set[str]]] = {}

    def note(self, question: str, name: str, value: object) -> None:
        for field, text in _flat(name, value):
            self.values.setdefault(question, {}).setdefault(field, set()).add(text)

    def alone(self) -> dict[str, dict[str, str]]:
        """Question → its fields with one value."""
        return {
            question: {field: min(texts) for field, texts in sorted(held.items()) if len(texts) == 1 and texts != GIVEN}
            for question, held in sorted(self.values.items())
        }


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The fields of a value, each with a text: of tensors the dtype, of paths and tensors by name whether there are."""
    if isinstance(value, Array):
        yield name, value.dtype
    elif is_dataclass(value) and not isinstance(value, type):
        if name:
            yield name, "given"
        for field in fields(value):
            if field.name != "name":
                yield from _flat(f"{name}.{field.name}" if name else field.name, getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield name, "given" if value else "none"
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        yield name, f"{len(value)} of them"
        yield from _flat(f"{name}[]", value[0])
    elif isinstance(value, str) and value.startswith("/"):
        yield name, "a path"
    else:
        yield name, str(sorted(map(str, value)) if isinstance(value, frozenset) else value)[:60]


def listening(asked: Asked) -> Reference:
    """The stack that writes down what it is asked."""

    def within(question: str) -> Any:
        real = getattr(Reference, question)

        def answer(self: Reference, *given: Any, **named: Any) -> Any:
            for place, value in enumerate(given):
                asked.note(question, "" if is_dataclass(value) and len(given) == 1 else _name_of(real, place), value)
            if (made_up := _MADE_UP.get(question)) is not None:
                return made_up(*given, **named)
            if question in DEAR or (questions()[question].of_numbers and question not in CHEAP):
                raise NotOffered("this stack only listens")
            return real(self, *given, **named)

        return answer

    every = {name: within(name) for name in Reference().offers}
    stack: Reference = type("Listening", (Reference,), {**every, "repeats": frozenset()})()
    return stack


def _name_of(question: Any, place: int) -> str:
    return str(question.__code__.co_varnames[place + 1])


def _trained(session: Session) -> Trained:
    start = 1 if session.load else 0
    weights = dict(session.weights)
    steps = tuple(
        Step(number=number, losses=dict.fromkeys(LOSSES, 1.0), tokens=1, lr=1e-3, grad_norm=1.0, clip_coef=1.0,
             gradients=weights, weights=weights, buffers=session.buffers, validation=1.0)
        for number in range(start + 1, start + 1 + session.steps)
    )  # fmt: skip
    return Trained(start=start, steps=steps, loaded=steps[0] if session.load and steps else None)


def _passed(recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
    logits = numerics.array(fixtures.normal("logits", (*batch.tokens.shape, recipe.vocab)))
    return Pass(logits=logits, losses=dict.fromkeys(LOSSES, 1.0), gradients=weights if backward else {})


def _run(call: BlockCall) -> BlockRun:
    return BlockRun(y=call.x, gradients={**call.weights, "x": call.x} if call.dy else {})


_MADE_UP: Mapping[str, Callable[..., object]] = {"train": _trained, "run_model": _passed, "run_block": _run}


def every_case(*, whole: bool = False) -> Asked:
    """Ask the cases of contracts without numbers and of those of a single pass; `whole`: of all."""
    read_checks()
    asked = Asked()
    stack = listening(asked)
    for contract in LAW.contracts.values():
        soon = not contract.of_numbers or "run_model" in contract.asks
        for case in contract.cases if soon or whole else ():
            judge(contract, case, stack, deadline_s=20.0)
    return asked


def of_cases() -> Asked:
    """The recipes and executions of all cases about numbers, by question."""
    read_checks()
    asked = Asked()
    for contract in LAW.contracts.values():
        for question in contract.asks if contract.of_numbers else ():
            for value in _values(tuple(contract.asked.values())):
                asked.note(question, type(value).__name__.lower(), value)
    for question, held in asked.values.items():
        asked.values[question] = {field: each for field, each in held.items() if not field.startswith(OF_LAUNCHES)}
    return asked


def _values(given: tuple[object, ...]) -> Iterator[Recipe | Execution]:
    for value in given:
        if isinstance(value, tuple):
            yield from _values(value)
        elif isinstance(value, Recipe | Execution):
            yield value


def of_numbers() -> str:
    """The page of the cases about numbers."""
    fields = page(of_cases(), OF_NUMBERS)
    return f"{fields}\n## Pairs and threes\n\n```text\n{pairs.table(LAW.contracts.values())}\n```\n"


def page(asked: Asked, title: str = TITLE) -> str:
    lines = [title]
    for question, alone in asked.alone().items():
        if alone:
            lines.append(f"- **{question}**, {len(alone)} of {len(asked.values[question])}: {', '.join(alone)}")
    return "\n".join(lines) + "\n"


def main() -> int:
    options, files = [[each for each in sys.argv[1:] if each.startswith("--") == said] for said in (True, False)]
    text = of_numbers() if "--cases" in options else page(every_case(whole="--all" in options))
    if files:
        Path(files[0]).write_text(text, encoding="utf-8")
    else:
        print(text)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

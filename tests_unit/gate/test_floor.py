"""A comparison in which nothing happened is violated by name, whatever the check makes of it."""

import struct
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
from contracts.contract import Contract
from contracts.court.floor import Floor
from contracts.court.judge import judge
from contracts.law._bugs.dead import LearnsNothing, MovesByNothing, StandsStill
from contracts.law._support.training_run import DENSE, batches, drawn_weights, table
from contracts.spec import Array, Execution, NotOffered, Pass, Session, Step, Trained, Training
from contracts.spec.records import Result
from contracts.stacks.reference.stack import Reference


def _twice(stack: Training, *, weights: bool) -> None:
    """Two equal runs, compared with each other."""
    asked = Session(
        recipe=DENSE, steps=2, execution=Execution(precision="float32"), batches=batches(2, recipe=DENSE),
        weights=drawn_weights(table(stack, DENSE)), observe=frozenset({"weights"} if weights else set()),
    )  # fmt: skip
    assert stack.train(asked) == stack.train(asked)


def _judged(stack: Training, *, weights: bool = True) -> Result:
    def check(stack: Training) -> None:
        _twice(stack, weights=weights)

    contract = Contract(id="OPT-01", check=check, asks=("built", "train"), cases={"twice": ()}, source="", tier="unit")
    return judge(contract, "twice", stack)


@pytest.mark.parametrize(
    ("dead", "words"),
    [
        (
            StandsStill,
            "nothing moved: after 2 steps at a rate up to 0.01 every weight is what it was, in each of 2 runs",
        ),
        (MovesByNothing, "nothing moved: after 2 steps"),
        (
            LearnsNothing,
            "nothing was learned: in 2 runs (2 steps at a rate up to 0.01) every reported gradient is 0",
        ),
    ],
)
def test_a_comparison_of_a_run_with_itself_is_violated_if_nothing_moved(
    dead: Callable[[], Reference], words: str
) -> None:
    result = _judged(dead())
    assert result.outcome == "violated"
    assert words in result.words


@pytest.mark.parametrize("raised", [NotOffered("it does not overflow", "case"), ZeroDivisionError(), KeyError("lm")])
@pytest.mark.parametrize(("stack", "moves"), [(LearnsNothing, False), (Reference, True)])
def test_a_dead_run_is_violated_even_if_the_check_declines_it(
    raised: Exception, stack: Callable[[], Reference], moves: bool
) -> None:
    def check(stack: Training) -> None:
        _twice(stack, weights=True)
        raise raised

    contract = Contract(id="OPT-01", check=check, asks=("built", "train"), cases={"twice": ()}, source="", tier="unit")
    result = judge(contract, "twice", stack())
    assert (result.outcome != "violated") == moves
    assert ("nothing was learned" in result.words) != moves


def test_a_stack_whose_weights_move_holds() -> None:
    assert _judged(Reference()).outcome == "holds"


def test_a_case_that_observes_no_weights_is_not_called_dead() -> None:
    assert _judged(StandsStill(), weights=False).outcome == "holds"


@pytest.mark.parametrize(("gradient", "dead"), [(0.0, True), (-0.0, True), (1e-30, False), (float("nan"), False)])
def test_a_step_without_any_gradient_is_violated(gradient: float, dead: bool) -> None:
    held = Array(dtype="float32", shape=(1,), data=struct.pack("<f", gradient))
    floor = Floor()
    floor.note((), Pass(logits=held, losses={}, gradients={"w": held}))
    assert floor.words == ("nothing was learned: every reported gradient is 0" if dead else "")


def test_a_weight_that_only_changes_from_0_to_minus_0_has_not_moved() -> None:
    (held, other) = (Array(dtype="float32", shape=(1,), data=struct.pack("<f", zero)) for zero in (0.0, -0.0))
    step = Step(number=1, losses={}, tokens=1, lr=0.1, grad_norm=1.0, clip_coef=1.0, weights={"w": other})
    floor = Floor()
    floor.note((Session(recipe=DENSE, steps=1, weights={"w": held}),), Trained(start=0, steps=(step,)))
    assert floor.words.startswith("nothing moved: after 1 steps at a rate up to 0.1")

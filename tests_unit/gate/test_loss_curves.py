"""What only a loss and a gradient's norm show of a wrong stack, taken down while a check trains it."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.harness.loss_curves import Curves, Watched
from contracts.harness.selftest import Matrix
from contracts.law._support.recipes import SMALL
from contracts.spec import Execution, Layout, Recipe, Session, Step, Trained
from contracts.spec.records import Fate, Kill


class Told:
    """Trains nothing: it reports a loss and a norm by the number of its ranks, or of the microbatches."""

    name, version = "told", "1"
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}
    offers = frozenset({"train"})

    def __init__(self, *figures: tuple[float, float]) -> None:
        self.figures = figures

    def train(self, session: Session) -> Trained:
        loss, norm = self.figures[session.execution.world - 1]
        steps = tuple(
            Step(number=n + 1, losses={"total": loss + n}, tokens=1, lr=0.0, grad_norm=norm, clip_coef=1.0)
            for n in range(session.steps)
        )
        return Trained(start=0, steps=steps)


def _curves(*figures: tuple[float, float], recipes: tuple[Recipe, ...] = (SMALL, SMALL), steps: int = 2) -> Curves:
    watched = Watched(Told(*figures))
    for world, recipe in enumerate(recipes, start=1):
        watched.train(Session(recipe=recipe, steps=steps, execution=Execution(world=world)))
    return watched.curves


def test_loss_curves_of_a_single_run_are_not_compared() -> None:
    assert _curves((3.0, 1.0), recipes=(SMALL,)) == Curves()


def test_loss_curves_of_two_recipes_are_not_compared() -> None:
    assert _curves((3.0, 1.0), (4.0, 2.0), recipes=(SMALL, replace(SMALL, seed=SMALL.seed + 1))) == Curves()


def test_loss_curves_agree_if_the_shown_digits_are_equal() -> None:
    assert _curves((3.0, 1.0), (3.0002, 1.00005)) == Curves(loss="agrees", norm="agrees")


def test_a_difference_is_reported_with_both_numbers() -> None:
    assert _curves((3.0, 1.0), (3.0, 1.5)) == Curves(loss="agrees", norm="1.5 and not 1")
    assert _curves((3.0, 1.0), (3.5, 1.0)) == Curves(loss="3.5 and not 3", norm="agrees")
    assert _curves((3.0, 1.0), (float("nan"), 1.0)).loss == "nan and not 3"


def test_loss_curves_that_differ_once_stay_different() -> None:
    assert _curves((3.0, 1.0), (3.5, 1.0), (3.0, 1.0), recipes=(SMALL, SMALL, SMALL)).loss == "3.5 and not 3"


def test_only_kills_with_training_steps_count_as_visible_in_the_loss_or_not() -> None:
    def kill(fate: Fate, loss: str) -> Kill:
        return Kill(mutant="M", of="PAR-01a", case="tp2", fate=fate, words="w", loss=loss)

    kills = (kill("killed", "agrees"), kill("killed", "2 and not 1"), kill("killed", ""), kill("survived", "agrees"))
    matrix = Matrix(baseline=(), kills=kills, unguarded=())
    assert (matrix.unseen, len(matrix.trained)) == (1, 2)

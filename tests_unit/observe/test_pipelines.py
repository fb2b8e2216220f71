"""A pipeline is compared with the whole model: legal schedules equal one rank, and what is broken is named first."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")


from contracts.stacks.reference.answers.observing import observe  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "docs/examples/observe_pipeline.py"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _observed(tmp_path_factory.mktemp("one"), 1)


def _observed(folder: Path, ranks: int, words: Sequence[str] = (), edits: Sequence[tuple[str, str]] = ()) -> Path:
    text = SCRIPT.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "train.py").write_text(text, encoding="utf-8")
    codes = observe(folder, ("train.py", *words), folder / "out", ranks)
    assert codes == [0] * ranks, (folder / "stderr-0").read_text()
    return folder / "out"


def _diff(one: Path, other: Path, code: int) -> str:
    return invoked("diff", one, other, code=code).output


def _judged(trace: Path, report: Path, code: int) -> str:
    return invoked("judge", trace, "--report", report, code=code).output


INTERLEAVED = ("--stages", "2", "--schedule")
LEGAL = {
    "1f1b": (2, ()), "gpipe": (2, ("--schedule", "GPipe")), "copies": (4, ()), "deep": (4, ("--pipeline", "4")),
    "interleaved": (2, (*INTERLEAVED, "Interleaved1F1B")),
    "zero-bubble": (2, (*INTERLEAVED, "InterleavedZeroBubble")),
}  # fmt: skip
TOLD = (
    ("import torch\n", "import torch\nfrom contracts import observe\n"),
    ("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        observe.step(microbatches=4)\n"),
)


@pytest.mark.parametrize("layout", LEGAL)
def test_a_correct_pipeline_equals_one_rank_and_violates_nothing(one: Path, tmp_path: Path, layout: str) -> None:
    """Its microbatches are declared, which a schedule that cuts backward passes, or has several stages a rank, has all
    the same."""
    ranks, words = LEGAL[layout]
    trace = _observed(tmp_path, ranks, words, TOLD)
    said = _diff(one, trace, code=0)
    for phase in ("initial weights", "inputs", "gradient"):
        assert f"{phase} ({8 if phase == 'inputs' else 28}" in said
    assert "agrees  step 2: updated weights (28)" in said
    _judged(trace, tmp_path / "report", code=0)


def test_pipeline_stages_with_equal_layer_numbers_are_not_taken_for_replicas(one: Path, tmp_path: Path) -> None:
    own = "nn.ModuleDict({str(at): each for at, each in enumerate(net.layers.values())})"
    trace = _observed(tmp_path, 2, edits=[("    return net\n", f"    net.layers = {own}\n    return net\n")])
    _judged(trace, tmp_path / "report", code=0)
    assert "unseen  30 × initial weights of only one run" in _diff(one, trace, code=0)


LOSS = "    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())\n"
BROKEN: dict[str, tuple[int, tuple[str, str], str]] = {
    "a-stage-drops-a-microbatch": (
        2, (LOSS, f"    CALLS.append(0)\n{LOSS.rstrip()} * (len(CALLS) % 4 > 0)\n\n\nCALLS = []\n"),
        "step 1, gradient: head.weight: differs by",
    ),
    "a-gradient-is-scaled-between-stages": (
        2, ("        x = x if self.embed is None", "        if self.embed is None and x.requires_grad:\n"
            "            x.register_hook(lambda grad: 2 * grad)\n        x = x if self.embed is None"),
        "step 1, gradient: layers.1.down.weight: differs by",
    ),
    "gradients-are-sums-over-microbatches": (
        2, ("loss_fn=loss_of", "loss_fn=loss_of, scale_grads=False"), "step 1, gradient: head.weight: differs by",
    ),
    "a-stage-begins-with-weights-of-its-own": (
        2, ("            torch.manual_seed(1337)", "            torch.manual_seed(1337 + number)"),
        "step 1, initial weights: layers.2.up.weight: differs by",
    ),
    "copies-of-a-stage-are-not-reduced": (
        4, ("if copies > 1 else part", "if copies > 2 else part"),
        "step 1, gradient: head.weight: rank 3 holds other bits than rank 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BROKEN)
def test_the_bug_of_a_broken_pipeline_is_reported_first(one: Path, tmp_path: Path, bug: str) -> None:
    ranks, edit, words = BROKEN[bug]
    said = _diff(one, _observed(tmp_path, ranks, edits=[edit]), code=1)
    assert words in said.strip().splitlines()[-1], said

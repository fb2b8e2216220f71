"""The reference's own trainer, observed as a script, on one, two and four ranks: its layouts are equal and healthy."""

from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")


from contracts.stacks.reference.answers.observing import observe  # noqa: E402

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "docs/examples/observe_reference.py"
LAYOUTS = {
    2: ("--tp 2", "--ep 2", "--fsdp", "", "--pp 2 --microbatches 2"),
    4: ("--tp 2 --ep 2", "--ep 2 --fsdp", "--pp 2 --tp 2 --microbatches 2", "--pp 2 --fsdp --microbatches 2"),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _observed(tmp_path_factory.mktemp("one"), 1, "")


def _observed(folder: Path, ranks: int, words: str) -> Path:
    codes = observe(folder, (str(SCRIPT), "--steps", "2", *words.split()), folder / "out", ranks)
    assert codes == [0] * ranks, (folder / "stderr-0").read_text()
    return folder / "out"


@pytest.mark.parametrize(("ranks", "words"), [(ranks, words) for ranks, each in LAYOUTS.items() for words in each])
def test_a_layout_of_the_reference_equals_one_rank_and_violates_nothing(
    one: Path, tmp_path: Path, ranks: int, words: str
) -> None:
    trace = _observed(tmp_path, ranks, words)
    done = invoked("diff", one, trace, code=0)
    assert "agrees  step 2: gradient (45)" in done.output
    assert "agrees  step 2: updated weights (45)" in done.output
    invoked("judge", trace, "--report", tmp_path / "report", code=0)

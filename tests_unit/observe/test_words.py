"""What `show`, `diff` and `judge` print of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from contracts.observe.recorder import Recorder  # noqa: E402
from contracts.observe.trace import Writer  # noqa: E402


def _observed(out: Path, change: Callable[[nn.Module], object] = lambda net: None, rate: float = 0.1,
              most: float = 100.0) -> Path:  # fmt: skip
    recorder = Recorder(Writer(out, 0, 1, ["train.py", "--now"], {"run": "r/0", "torch": torch.__version__}), 2)
    recorder.start()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randint(64, (4, 9))
        nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        change(net)
        nn.utils.clip_grad_norm_(net.parameters(), most)
        optimizer.step()
        optimizer.zero_grad()
    recorder.close()
    return out


def _scaled(by: float, *of: int) -> Callable[[nn.Module], object]:
    return lambda net: [each.grad.mul_(by) for at, each in enumerate(net.parameters()) if at in of or not of]


def _flipped(net: nn.Module) -> None:
    for each in net.parameters():
        each.grad.copy_(each.grad.flip(0))  # type: ignore[union-attr]


def _said(*words: object) -> str:
    return invoked(*words).output


def test_show_prints_ranks_models_steps_and_parameters(tmp_path: Path) -> None:
    said = _said("show", _observed(tmp_path / "one"), "--step", 2).splitlines()
    assert said[0] == f"train.py --now: 2 steps on 1 ranks, torch {torch.__version__}"
    assert said[1] == "model Sequential: 3 trainable, 0 frozen parameters"
    assert said[2].startswith("step 1: 4 rows in 1 microbatches, loss 4.")
    assert "3 gradients of norm " in said[2]
    assert "rates 0.1, 3 outputs, 1 × clip" in said[2]
    assert [line.split()[:3] for line in said[4:7]] == [
        ["0.weight", "64×16", "float32"], ["1.weight", "64×16", "float32"], ["1.bias", "64", "float32"],
    ]  # fmt: skip


@pytest.mark.parametrize(("by", "words"), [
    (2.0, "; all that differ are 2 times that of the reference"), (0.25, "; all that differ are 1/4 of that of the"),
])  # fmt: skip
def test_a_factor_of_gradients_is_named(tmp_path: Path, by: float, words: str) -> None:
    one = _observed(tmp_path / "one")
    assert words in _said("diff", one, _observed(tmp_path / "all", _scaled(by)))
    assert words.replace("all that differ are", "it is") in _said(
        "diff", one, _observed(tmp_path / "a", _scaled(by, 1))
    )
    assert "of the reference" not in _said("diff", one, _observed(tmp_path / "no", _scaled(1.3)))
    assert "times that" not in _said("diff", one, _observed(tmp_path / "other", _flipped))


def test_a_factor_that_clipping_hides_is_in_the_norm_that_it_read(tmp_path: Path) -> None:
    one = _observed(tmp_path / "one", most=0.1)
    said = _said("diff", one, _observed(tmp_path / "other", _scaled(1.41), most=0.1))
    words = "clipping: 3 gradients: the norm that clipping read is 1.41 times that of the reference: "
    assert f"first in step 1, {words}" in said
    assert "agrees  step 1: gradient (3)" in said
    said = _said("diff", _observed(tmp_path / "free"), _observed(tmp_path / "freer", most=200.0))
    assert "clipping: 3 gradients: they are clipped at 200, and at 100 in the reference" in said
    said = _said("diff", one, one)
    assert "agrees  step 2: norm of 3 gradients before clipping" in said
    assert "6 gradients, 2 norms, " in said.splitlines()[-1]


def test_a_different_learning_rate_is_one_line_of_a_diff(tmp_path: Path) -> None:
    said = _said("diff", _observed(tmp_path / "one"), _observed(tmp_path / "other", rate=0.2))
    assert "0.weight: learning rate 0.2 and decay 0 on rank 0, and 0.1 and 0 in the reference; likewise 2 more" in said
    assert said.count("differs ") == 1


def test_judge_writes_nothing_into_the_working_directory_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    said = _said("judge", _observed(tmp_path / "one"))
    assert "Outside the profile" not in said
    assert [each.name for each in tmp_path.iterdir()] == ["one"]
    report = Path(next(line for line in said.splitlines() if line.startswith("report: ")).removeprefix("report: "))
    assert report.is_file()
    invoked("replay", report.parent, code=0)

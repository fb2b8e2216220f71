"""In which mode a model trains: after an evaluation in front of the first step, and in two runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import rankproof  # noqa: E402


def _observed(out: Path, begin: Callable[[nn.Module], object], dropout: float = 0.5, *, compiled: bool = False) -> Path:
    with rankproof.observing(out, steps=2):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(64, 16), nn.Dropout(dropout), nn.Linear(16, 64))
        if compiled:
            net.compile(backend="eager")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        begin(net)
        for step in range(3):
            torch.manual_seed(step)
            x = torch.randint(64, (4, 9))
            nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def _evaluates(net: nn.Module) -> None:
    net.eval()
    with torch.no_grad():
        net(torch.arange(8).reshape(1, 8))


def _judged(trace: Path, tmp_path: Path, code: int) -> str:
    return " ".join(invoked("judge", trace, "--report", tmp_path / "report", code=code).output.split())


def _diff(one: Path, other: Path, code: int) -> str:
    return invoked("diff", one, other, code=code).output


def test_a_model_that_an_evaluation_leaves_in_evaluation_mode_is_named(tmp_path: Path) -> None:
    said = _judged(_observed(tmp_path / "one", _evaluates), tmp_path, code=1)
    assert "OBS-13[one-run] got after an evaluation before step 1, the model stays in evaluation mode on" in said


@pytest.mark.parametrize("begin", [lambda net: (_evaluates(net), net.train()), lambda net: net[1].eval()],
                         ids=["comes back", "by intent"])  # fmt: skip
def test_a_model_that_trains_is_healthy(tmp_path: Path, begin: Callable[[nn.Module], object]) -> None:
    _judged(_observed(tmp_path / "one", begin), tmp_path, code=0)


def test_evaluation_mode_of_a_module_without_effect_is_no_finding(tmp_path: Path) -> None:
    traces = [
        _observed(tmp_path / name, begin, 0.0) for name, begin in (("one", nn.Module.train), ("eval", _evaluates))
    ]
    _judged(traces[1], tmp_path, code=0)
    _diff(*traces, code=0)


def test_runs_in_training_and_in_evaluation_mode_differ(tmp_path: Path) -> None:
    traces = [_observed(tmp_path / name, begin) for name, begin in (("one", nn.Module.train), ("eval", nn.Module.eval))]
    assert "modes: 1: is in evaluation mode, and in training mode in the reference, on rank 0" in _diff(*traces, code=1)
    assert "modes: 1: is in training mode, and in evaluation mode in the reference on rank 0" in _diff(
        *traces[::-1], code=1
    )


def test_compiled_code_that_draws_other_numbers_is_not_comparable(tmp_path: Path) -> None:
    """And a run of which neither or both is compiled is."""

    def otherwise(net: nn.Module) -> None:
        net[1].p = 0.4  # type: ignore[index]

    plain, other = _observed(tmp_path / "plain", nn.Module.train), _observed(tmp_path / "other", otherwise)
    _diff(plain, other, code=1)
    said = _diff(plain, _observed(tmp_path / "compiled", otherwise, compiled=True), code=3)
    assert "compiled code draws others" in said


def test_a_root_that_compiles_itself_is_observed(tmp_path: Path) -> None:
    traces = [_observed(tmp_path / name, nn.Module.train, 0.0, compiled=bool(at)) for at, name in enumerate(("a", "b"))]
    assert "compared: 3 initial weights, 2 steps, 2 outputs" in _diff(*traces, code=0)
    _judged(traces[1], tmp_path, code=0)

"""Rows are known by their contents: not by an argument's name, place or padding."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils import data  # noqa: E402

import rankproof  # noqa: E402

STEPS = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], y: Tensor | None = None, **_: Tensor | None) -> Tensor:
        ids, labels = x if isinstance(x, tuple) else (x, y)
        scores = self.head(self.embed(ids)).flatten(0, 1)
        return nn.functional.cross_entropy(scores, labels.flatten(), ignore_index=-100)  # type: ignore[union-attr]


def _padded(rows: Tensor, by: int, value: int, *, left: bool = False) -> Tensor:
    return nn.functional.pad(rows, (by, 0) if left else (0, by), value=value)


def _masked(x: Tensor, y: Tensor, by: int = 0, *, left: bool = False) -> dict[str, Tensor]:
    return {
        "x": _padded(x, by, 0, left=left), "y": _padded(y, by, -100, left=left),
        "attention_mask": _padded(torch.ones_like(x), by, 0, left=left),
        "position_ids": torch.arange(x.shape[1] + by)[None],
    }  # fmt: skip


Call = Callable[[Net, Tensor, Tensor], Tensor]
CALLS: dict[str, Call] = {
    "two arguments": lambda net, x, y: net(x, y),
    "a tuple": lambda net, x, y: net((x, y)),
    "named": lambda net, x, y: net(x=x, y=y),
    "a mask of ones": lambda net, x, y: net(**_masked(x, y)),
    "forward by its name": lambda net, x, y: net.forward(x, y),
    "padded": lambda net, x, y: net(**_masked(x, y, 3)),
    "padded without a mask": lambda net, x, y: net(_padded(x, 3, 0), _padded(y, 3, -100)),
    "padded on the left": lambda net, x, y: net(**_masked(x, y, 2, left=True)),
}


def _observed(out: Path, train: Callable[[], None]) -> Path:
    with rankproof.observing(out, steps=STEPS):
        train()
    return out


def _train(
    call: Call, *, seed: int = 0, trial: Callable[[Net, torch.optim.Optimizer, int], None] | None = None
) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        if trial is not None:
            trial(net, optimizer, step)
        text = torch.randint(1, 64, (4, 9), generator=torch.Generator().manual_seed(step + seed * step))
        call(net, text[:, :-1], text[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


def _diff(one: Path, other: Path, *words: str, code: int) -> str:
    return invoked("diff", one, other, *words, code=code).output


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _observed(tmp_path_factory.mktemp("one") / "trace", lambda: _train(CALLS["two arguments"]))


@pytest.mark.parametrize("call", CALLS)
def test_equal_rows_are_recognised_in_any_form_of_the_call(one: Path, tmp_path: Path, call: str) -> None:
    _diff(one, _observed(tmp_path / "other", lambda: _train(CALLS[call])), code=0)


OTHERS: dict[str, Call] = {
    "ids in another order": lambda net, x, y: net(x.flip(1), y),
    "labels of other rows": lambda net, x, y: net(x, y.roll(1, 0)),
    "ids after them": lambda net, x, y: net(torch.cat([x, x[:, :3]], 1), _padded(y, 3, -100)),
    "an id that is masked": lambda net, x, y: net(
        **_masked(x, y) | {"attention_mask": (torch.arange(8) < 7).expand(4, 8)}
    ),
}


@pytest.mark.parametrize("call", OTHERS)
def test_different_rows_are_named_with_step_rank_and_place(one: Path, tmp_path: Path, call: str) -> None:
    said = _diff(one, _observed(tmp_path / "other", lambda: _train(OTHERS[call])), code=3)
    assert (
        "step 1: the inputs differ: 4 rows and 4 rows, of which 4 are only in the first run (such as row 0 of " in said
    )
    assert "only in the second (such as row 0 of microbatch 1 on rank 0)" in said


@pytest.mark.parametrize(("seeds", "add", "words"), [
    ((0, 1), (0, 0), "on rank 0 each run splits its dataset otherwise (["),
    ((0, 0), (1, 2), "on rank 0 each run orders its dataset otherwise (["),
    ((0, 0), (1, 1), ""),  # other contents of the same rows
])  # fmt: skip
def test_a_split_or_an_order_without_a_seed_is_said(
    tmp_path: Path, seeds: tuple[int, int], add: tuple[int, int], words: str
) -> None:
    def train(split: int, order: int, moved: int) -> None:
        texts = torch.randint(1, 60, (48, 9), generator=torch.Generator().manual_seed(0)) + moved
        part, _ = data.random_split(texts, [40, 8], torch.Generator().manual_seed(split))  # type: ignore[arg-type, var-annotated]
        batches = iter(data.DataLoader(part, 4, shuffle=True, generator=torch.Generator().manual_seed(order)))
        _train(lambda net, x, y: net((rows := next(batches))[:, :-1], rows[:, 1:]))

    runs = [_observed(tmp_path / f"{at}", lambda at=at: train(seeds[at], add[at], at)) for at in (0, 1)]
    said = _diff(*runs, code=3)
    assert words in said
    assert ("without a seed?" in said) == bool(words)


def _dropped(net: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 0:
        for _ in range(2):
            net(torch.arange(8).reshape(1, 8), torch.arange(8)).backward()
        optimizer.zero_grad()


def test_a_trial_pass_whose_gradients_are_dropped_belongs_to_no_step(one: Path, tmp_path: Path) -> None:
    other = _observed(tmp_path / "other", lambda: _train(CALLS["two arguments"], trial=_dropped))
    _diff(one, other, code=0)
    invoked("judge", other, "--report", tmp_path / "report", code=0)
    assert [each for each in _lines(other) if each["e"] == "dropped"] == [
        {"e": "dropped", "step": 1, "microbatches": 2, "backward": 2}
    ]


def test_dropping_microbatches_in_every_step_is_named(tmp_path: Path) -> None:
    """`zero_grad` stands inside the loop over microbatches."""

    def trial(net: Net, optimizer: torch.optim.Optimizer, step: int) -> None:
        net(torch.arange(8).reshape(1, 8), torch.arange(8)).backward()
        optimizer.zero_grad()

    other = _observed(tmp_path / "other", lambda: _train(CALLS["two arguments"], trial=trial))
    said = " ".join(invoked("judge", other, "--report", tmp_path / "report", code=1).output.split())
    assert "in each of 2 steps, the gradients of a microbatch are dropped before an optimizer steps" in said


def test_early_steps_can_be_left_out_of_a_comparison(one: Path, tmp_path: Path) -> None:
    """Both from the same weights in step 2: the first step's rows are permuted, which SGD does not see."""

    other = _observed(tmp_path / "other", lambda: _train(CALLS["two arguments"], seed=5))
    _diff(one, other, code=3)
    assert "compared: 3 initial weights, 1 step," in _diff(other, other, "--from-step", "2", code=0)
    _diff(one, other, "--from-step", "2", code=3)
    _diff(one, one, "--from-step", "3", code=3)  # no step is left


def _lines(trace: Path) -> Iterator[dict[str, object]]:
    return (json.loads(line) for line in (trace / "rank-00000.jsonl").read_text().splitlines())

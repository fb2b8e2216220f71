"""Tensors of every kind: what the recorder does not read it leaves alone and counts; the script continues as before."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import rankproof  # noqa: E402
from contracts.observe.trace import read  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::UserWarning")]  # some kinds are prototypes of torch


class Tagged(Tensor):
    """A class of the script's own, which counts what is asked of it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        cls.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call, arg-type]


class Net(nn.Module):
    """Trains `inner`, with one thing more: a parameter or a buffer."""

    def __init__(self, more: Tensor) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        if isinstance(more, nn.Parameter):
            self.more = more
        else:
            self.register_buffer("more", more)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        if isinstance(self.more, nn.Parameter) and self.more.requires_grad:
            found = found + torch.view_as_real(self.more).sum() if self.more.is_complex() else found + self.more.sum()
        return found


def _ragged() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)


KINDS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: nn.Parameter(torch.empty(0, 4)),
    "scalar": lambda: nn.Parameter(torch.tensor(2.0)),
    "complex": lambda: nn.Parameter(torch.ones(3, dtype=torch.complex64)),
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "frozen on meta": lambda: nn.Parameter(torch.empty(3, device="meta"), requires_grad=False),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "ragged": _ragged,
    "float8": lambda: torch.ones(4).to(torch.float8_e4m3fn),
    "unsigned": lambda: torch.ones(4, dtype=torch.uint16),
    "expanded": lambda: torch.ones(1, 3).expand(4, 3),
    "transposed": lambda: nn.Parameter(torch.ones(2, 3).t()),
    "own class": lambda: torch.ones(3).as_subclass(Tagged),
}  # fmt: skip


def _train(net: nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4) * (step + 1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 4))
        net.train()
    return losses


def _observed(out: Path, net: nn.Module) -> list[float]:
    with rankproof.observing(out, steps=2):
        losses = _train(net)
    assert not (read(out).ranks[0].end or {}).get("error"), "the recorder failed"
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_is_observed_or_left_alone(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    plain = _train(Net(KINDS[kind]()))
    torch.manual_seed(0)
    before = Tagged.asked
    assert _observed(tmp_path / "trace", Net(KINDS[kind]())) == plain
    assert Tagged.asked - before <= 12  # of the module and of the test
    invoked("judge", tmp_path / "trace", "--report", tmp_path / "report", code=0)
    invoked("diff", *[str(tmp_path / "trace")] * 2, code=0)


def test_a_complex_weight_is_compared(tmp_path: Path) -> None:
    for name, value in (("one", 1.0), ("other", 1.0 + 1e-3j)):
        torch.manual_seed(0)
        _observed(tmp_path / name, Net(nn.Parameter(torch.full((3,), value, dtype=torch.complex64))))
    assert "initial weights: more: differs by" in invoked("diff", tmp_path / "one", tmp_path / "other", code=1).output


def test_lazy_parameters_and_nested_inputs_are_observed(tmp_path: Path) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LazyLinear(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.to_padded_tensor(0.0) if x.is_nested else x)  # type: ignore[no-any-return]

    net = Mean()
    with rankproof.observing(tmp_path / "trace", steps=2):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            net(_ragged()).square().mean().backward()
            optimizer.step()
    end = read(tmp_path / "trace").ranks[0].end or {}
    assert (end["steps"], end.get("error", "")) == (2, "")


def test_the_output_of_an_identity_is_not_compared(tmp_path: Path) -> None:
    """A stage of a pipeline that has no norm may hold an Identity under its name."""
    torch.manual_seed(0)
    _observed(tmp_path / "trace", nn.Sequential(nn.Linear(4, 4), nn.Identity()))
    assert {line["name"] for line in read(tmp_path / "trace").ranks[0].of("forward")} == {"0", "(root)"}

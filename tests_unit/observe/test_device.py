"""A device sums up in one launch what the CPU sums up one by one, and a trace is the same either way.

Triton's interpreter runs the kernels on the CPU, in a process of its own, where Triton is installed. A stand-in for
them that adds up element by element, from the same tables, takes their place for whole traces.
"""

import ctypes
import gc
import itertools
import json
import runpy
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

from torch import nn  # noqa: E402

from benchmarks import observed_operations  # noqa: E402
from contracts.observe import device  # noqa: E402
from contracts.observe.merged import Merged  # noqa: E402
from contracts.observe.recorder import Recorder  # noqa: E402
from contracts.observe.sketch import hashed  # noqa: E402
from contracts.observe.trace import Writer, read  # noqa: E402

ROOT = Path(__file__).parents[2]
KINDS = {torch.float32: "f", torch.float64: "d"}


class _Launched:
    """A kernel of the stand-in, started as one of Triton's is."""

    def __init__(self, run: Callable[..., None], launches: list[str]) -> None:
        self.run, self.launches = run, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(*arguments: Any, **named: Any) -> None:
            self.launches.append(self.run.__name__)
            self.run(grid, *arguments, **named)

        return start


def _at(address: int, kind: Any, size: int) -> Any:
    return numpy.ctypeslib.as_array((kind * size).from_address(address)) if size else numpy.zeros(0)


def _signed(table: Any, values: Any) -> Any:
    return numpy.where(table < 0, 0, numpy.where((table & 2048) != 0, -values, values))


def bits(
    grid: Any, items: Any, there: Any, parts: Any, chunk: Any, squares_at: int, sums_at: int, **how: Any
) -> None:  # fmt: skip
    squares, sums = chunk[squares_at:], chunk.view(torch.int64)[sums_at:]
    for program, (number, part) in enumerate(parts.tolist()):
        _, rows, width, _, _, _, row_odd, column_odd = items[number].tolist()
        flat = _at(there[number].item(), how["VALUE"], rows * width)
        mine = slice(part * how["LOOPS"] * how["BLOCK"], (part + 1) * how["LOOPS"] * how["BLOCK"])
        odd = numpy.outer(_at(row_odd, ctypes.c_int64, rows), _at(column_odd, ctypes.c_int64, width)).reshape(-1)[mine]
        held = flat[mine]
        squares[program] = float((held.astype("d") ** 2).sum())
        sums[program] = int((held.view(f"i{held.itemsize}").astype("i8") * odd).sum())


def parameters(grid: Any, items: Any, there: Any, strips: Any, chunk: Any, begin: int, **how: Any) -> None:
    found = chunk[begin:]
    for number, strip in strips.tolist():
        at, rows, width, order, deepest, columns, _, _ = items[number].tolist()
        values = _at(there[number].item(), how["VALUE"], rows * width).reshape(rows, width).astype("d")
        lines = _at(order, ctypes.c_int32, 1024 * deepest).reshape(deepest, 1024)
        table = _at(columns, ctypes.c_int32, width)
        for bucket in range(1024):
            for coded in (each for each in lines[:, bucket] if each >= 0):
                for column in range(strip * how["BLOCK"], min(width, strip * how["BLOCK"] + how["BLOCK"])):
                    value = _signed(table[column], values[coded >> 1, column])
                    found[at + (bucket + table[column]) % 1024] += float(-value if coded & 1 else value)


def summed(
    grid: Any, x: Any, y: Any, x_step: int, y_step: int, x_width: int, y_width: int, x_odd: Any, y_odd: Any,
    powers: Any, chunk: Any, at: int, count: int, **how: Any,
) -> None:  # fmt: skip
    assert grid[0] == count == len(x) == len(y)
    assert (x.stride(0), y.stride(0), x.shape[1], y.shape[1]) == (x_step, y_step, x_width, y_width)
    out, prime = chunk.view(torch.int64)[at : at + 8 * count], how["PRIME"]
    for number, (ids, odd) in enumerate(((x, x_odd), (y, y_odd))[: 1 + how["TWO"]]):
        out[(4 + number) * count : (5 + number) * count] = ((ids + 1) * odd).sum(1)
        out[(6 + number) * count : (7 + number) * count] = (ids > 1).any(1)
    for row, ids in enumerate(x.tolist()):
        for half in range(2):
            one, other = (sum((each + 1) % prime * power % prime for each, power in zip(ids, of, strict=True)) % prime
                          for of in powers[2 * half : 2 * half + 2].tolist())  # fmt: skip
            out[2 * count + 2 * row + half] = one | other << 31


def numbered(grid: Any, chunk: Any, at: int, count: int, key: int, **how: Any) -> None:
    rows, ids, _, _, *sums = chunk.view(torch.int64)[at : at + 8 * count].view(8, count)
    both = [each * (each ^ key) for each in sums[: 1 + how["TWO"]]]
    rows[:] = hashed(key, sum(both)) & (1 << 63) - 1
    by = [each for each, large in zip(both, sums[2:], strict=False) if large.any()]
    by = both if how["NAMED"] else by if how["TWO"] else []
    ids[:] = hashed(key, by[0]) & (1 << 63) - 1 if by and how["TWO"] else rows


def ordered(
    grid: Any, rows: Any, key: int, order: Any, starts: Any, found: Any, batch: int, inner: int, **how: Any
) -> None:
    of: list[list[int]] = [[] for _ in range(64)]
    for row, code in enumerate(hashed(key % 2**64, rows).tolist()):
        for bucket in range(64):
            for coded in order[starts[bucket] : starts[bucket + 1]].tolist():
                of[(bucket + code) % 64].append((coded ^ 1 - (code >> 32 & 1)) + 2 * row * inner)
    found[:65] = torch.tensor([0, *itertools.accumulate(map(len, of))])
    found[128 : 128 + batch * inner] = torch.tensor(list(itertools.chain(*of)))


def batched(
    grid: Any, x: Any, order: Any, columns: Any, chunk: Any, at: int, squares_at: int, width: int, **how: Any
) -> None:
    values, table = x.detach().reshape(-1, width).double().numpy(), columns.numpy()
    chunk[squares_at] = float((values**2).sum())
    for bucket in range(64):
        for coded in order[128:][order[bucket] : order[bucket + 1]].tolist():
            signed = _signed(table, values[coded >> 1]) * (-1 if coded & 1 else 1)
            chunk[at : at + 1024].index_add_(
                0, torch.as_tensor((bucket + table) % 1024).long(), torch.as_tensor(signed)
            )


def few(grid: Any, kept: Any, found: Any, at: int, *given: int, **how: Any) -> None:
    values: list[float] = []
    for address, size in zip(given[:8], given[8:], strict=True):
        mine = _at(address, how["VALUE"], size)[:: max(1, size // 8)][:8].tolist()
        values += mine + [0.0] * (8 - len(mine))
    now = torch.tensor(values, dtype=torch.float64)
    if how["BESIDE"]:
        found[at : at + 128] = torch.cat([kept, now])
    else:
        kept[:] = now


KERNELS = (bits, parameters, summed, numbered, ordered, batched, few)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every tensor is on a device now, whose kernels are the stand-in."""
    found: list[str] = []
    kinds = {torch.float32: (ctypes.c_float, None), torch.float64: (ctypes.c_double, None)}
    kernels = SimpleNamespace(TYPES=kinds, **{each.__name__: _Launched(each, found)
                                              for each in KERNELS})  # fmt: skip
    monkeypatch.setattr(device, "here", lambda tensor: True)
    monkeypatch.setattr(device, "_kernels", lambda: kernels)
    return found


def _trained(folder: Path, *, left: bool = False) -> Recorder:
    torch.manual_seed(3)
    model = runpy.run_path(str(ROOT / "docs/examples/observe_nano.py"))["GPT"](
        vocab=40, length=64, width=16, heads=2, depth=1
    )
    model.register_buffer("seen", torch.zeros(3))
    model.wte.register_forward_hook(lambda *_: setattr(model, "seen", model.seen + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recorder = Recorder(Writer(folder, 0, 1, ("test",), {"run": ""}), 3)
    recorder.start()
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        text = torch.randint(40, (3, 65), generator=draw)
        model(text[:, :-1], text[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not left:
            optimizer.zero_grad(set_to_none=False)
        else:
            model.ln_f.weight.data.mul_(1.5)  # moves behind its update, and so has a sketch
    recorder.close()
    assert (recorder.failed, recorder.done) == ("", 3)
    return recorder


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in (folder / "rank-00000.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("left", [False, True])
def test_a_trace_made_by_device_kernels_equals_that_of_the_cpu(
    tmp_path: Path, request: pytest.FixtureRequest, left: bool
) -> None:
    _trained(tmp_path / "here", left=left)
    started = request.getfixturevalue("launches")
    _trained(tmp_path / "there", left=left)
    assert {*started} == {each.__name__ for each in KERNELS}
    here, there = _lines(tmp_path / "here"), _lines(tmp_path / "there")
    assert len(here) == len(there) > 300
    for one, other in zip(here, there, strict=True):
        assert float(one.pop("squares", 0)) == pytest.approx(float(other.pop("squares", 0)), rel=1e-12)
        assert one == other
    sketches = [numpy.fromfile(tmp_path / each / "rank-00000.sketches") for each in ("here", "there")]
    numpy.testing.assert_allclose(*sketches, rtol=1e-11, atol=1e-12)
    assert [each["names"] for each in there if each["e"] == "statistics"] == [["seen"]] * 3


@pytest.mark.usefixtures("launches")
def test_a_script_that_is_killed_leaves_each_step_that_a_backward_pass_has_followed(tmp_path: Path) -> None:
    """What is on disk is what a killed process leaves. After the last step nothing of the script stays alive."""
    model, whole = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recorder = Recorder(Writer(tmp_path, 0, 1, ("test",), {"run": ""}), 3)
    recorder.start()
    for _ in range(4):
        loss = model(torch.randn(6, 4)).square().mean()
        whole.append(Merged(read(tmp_path)).steps)
        loss.backward()
        whole.append(Merged(read(tmp_path)).steps)
        optimizer.step()
        optimizer.zero_grad()
    assert whole == [0, 0, 0, 1, 1, 2, 3, 3]
    weight = weakref.ref(model[0].weight)
    del model, optimizer, loss
    gc.collect()
    assert weight() is None
    recorder.close()


def test_an_observed_step_costs_a_device_few_launches_and_one_wait() -> None:
    """An output is one launch; ids and all parameters together are sixteen, however many they are."""
    two, four = (observed_operations.counted(depth) for depth in (2, 4))
    assert four["batched"] - two["batched"] == 2 * 7
    assert four["launches"] - four["batched"] == two["launches"] - two["batched"] <= 16
    assert four["operators"] == two["operators"] <= 12
    assert (four["waits"], four.get("reads", 0)) == (1, 0)


INTERPRETED = """
import torch
from contracts.observe import applied, cut, device, recorder
from contracts.observe.placement import flat_range
from contracts.observe.sketch import Piece, fingerprint, sketch, span, whole

there, asked, torch_seed = device.Device(torch.device("cpu")), [], torch.manual_seed(0)
def ask(name, x, pieces):
    asked.append((name, x, pieces, there.ask(x, pieces, sketch=len(asked) % 4 != 3)))
for dtype in device.FLOATS:
    for shape in ((70, 130), (4, 5, 6), (), (0, 4), (1100,)):
        ask(f"w{shape}", torch.randn(shape).to(dtype), whole(shape))
x = torch.randn(90)
ask("flat", x, flat_range(x, (40, 30), 33).pieces)
ask("padded", torch.randn(7, 3), (Piece(start=0, indices=(torch.tensor([0, 1, 2, 3, 4, -1, -1]), span(3))),))
outputs = []
for dtype in device.FLOATS[:2]:
    for shape in ((2, 70, 300), (80, 12), (130, 65, 2), (2, 3, 9)):
        x = torch.randn(shape).to(dtype)
        rows = torch.randint(1 << 62, shape[:1])
        piece = Piece(start=0, indices=(rows, *map(span, shape[1:])), coarse=True)
        outputs.append((str(shape), x, (piece,), there.of_batch(x, piece).launch(x, rows)))
ids = [torch.randint(1 << 40, (3, 40))[:, :-1], torch.randint(-100, 2, (3, 1101), dtype=torch.int32)]
grads = {dtype: [torch.randn(size).to(dtype) for size in (90, 3, 8, 17, 1)] for dtype in device.FLOATS}
few = {dtype: there.few_beside([each * 2 for each in held], there.few(held)) for dtype, held in grads.items()}
pairs = [(a, b, name) for name in ("", "input_ids") for a, b in (ids, ids[::-1], ids[1:] * 2)]
known = [(a, b, name, there.numbered((a, b), named=bool(name), key=recorder._ROW)[1]) for a, b, name in pairs]
known += [(a, None, "", there.numbered((a,), named=False, key=recorder._ROW)[1]) for a in ids]
numbers = [there.keep(torch.tensor([1 << 62, -3])), there.keep(torch.tensor(2.5))]
there.read()
assert [each().tolist() for each in numbers] == [[1 << 62, -3], [2.5]]
for dtype, held in grads.items():
    both = torch.tensor(few[dtype]()).view(2, 8, 8)
    for at, each in enumerate(held):
        want = applied.few(each).double()
        assert both[:, at, : len(want)].tolist() == [want.tolist(), (2 * want).tolist()]
for a, b, name, found in known:
    given = {name or "0": a} | ({"1": b} if b is not None else {})
    rows, own, _ = recorder._rows(given, False)
    assert [each() for each in found] == [rows.tolist(), own.tolist(), cut.halves(given)[0].reshape(-1).tolist()]
for name, x, pieces, found in asked:
    assert found.bits == f"{fingerprint(x, pieces):016x}", (name, x.dtype)
for name, x, pieces, found in asked:
    assert abs(found.squares - float(x.double().square().sum())) <= 1e-12 * found.squares, name
    if found.wants_sketch:
        torch.testing.assert_close(found.sketch, sketch(x, pieces), rtol=1e-12, atol=1e-11)
for name, x, pieces, place in outputs:
    summed, *squares = there.found(place).split([1024, place.size - 1024])
    torch.testing.assert_close(squares[0].sum(), x.double().square().sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(summed, sketch(x, pieces), rtol=1e-12, atol=1e-11)
print(len(asked), len(outputs), len(known))
"""


@pytest.mark.slow
def test_the_triton_kernels_equal_the_cpu_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", minversion="3.7", reason="torch's CUDA builds bring Triton; before 3.7 its "
                        "interpreter does not run on numpy 2.4")  # fmt: skip
    env = {"TRITON_INTERPRET": "1", "PYTHONPATH": ":".join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.stdout == "22 8 8\n", done.stderr

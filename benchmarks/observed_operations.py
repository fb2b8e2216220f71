"""What an observed step gives a device, counted on a CPU: every tensor counts as one of a device with kernels.

    python -m benchmarks.observed_operations

For a step of the nano script, the second observed one: launches of the recorder's own kernels, operators of torch that
would be launches or copies, bytes that the kernels read, and how often the CPU reads numbers and so would wait. A
time on a device is estimated from them, 4 us a launch and 4 TB/s. Prints one JSON line.
"""

import contextlib
import json
import runpy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from contracts.observe import device
from contracts.observe.recorder import Recorder
from contracts.observe.trace import Writer

NANO = Path(__file__).parents[1] / "docs/examples/observe_nano.py"
FREE = frozenset(("alias", "as_strided", "detach", "empty", "expand", "permute", "reshape", "select", "slice",
                  "squeeze", "t", "transpose", "unsqueeze", "view"))  # fmt: skip
"""Operators that move no number."""
LAUNCH_S, BYTES_PER_S = 4e-6, 4e12


class _Counting(TorchDispatchMode):
    """Counts operators of torch while the recorder works."""

    def __init__(self, recorder: Recorder, counts: Counter[str]) -> None:
        super().__init__()
        self.recorder, self.counts = recorder, counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        if self.recorder.busy and name == "local_scalar_dense":
            self.counts["reads"] += 1
        elif self.recorder.busy and name not in FREE:
            self.counts["operators"] += 1
        return func(*args, **(kwargs or {}))


def _kernels(counts: Counter[str]) -> SimpleNamespace:
    """Kernels that do nothing and are counted, with the bytes that they would read."""

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return self.start

        def start(self, *given: Any, **how: Any) -> None:
            counts["launches"] += 1
            counts[self.name] += 1
            if self.name == "batched":
                counts["bytes"] += given[0].numel() * given[0].element_size()
            elif self.name in ("bits", "parameters"):
                counts["bytes"] += int(given[0].numpy()[:, 1:3].prod(1).sum()) * how["VALUE"]

    return SimpleNamespace(
        TYPES={each: (each.itemsize, None) for each in device.FLOATS},
        **{each: Kernel(each) for each in ("batched", "parameters", "bits", "summed", "numbered", "ordered", "few")},
    )


@contextlib.contextmanager
def _everywhere(counts: Counter[str]) -> Iterator[None]:
    """Every tensor is of a device now; what reads its numbers before `read` is counted."""
    tolist = torch.Tensor.tolist

    def read(tensor: torch.Tensor) -> Any:
        counts["reads"] += 1
        return tolist(tensor)

    kernels = _kernels(counts)
    with (
        mock.patch.object(device, "here", return_value=True),
        mock.patch.object(device, "_kernels", return_value=kernels),
        mock.patch.object(torch.Tensor, "tolist", read),
    ):
        yield


def counted(depth: int) -> dict[str, int]:
    """What the second observed step of the nano script gives a device."""
    torch.manual_seed(0)
    model = runpy.run_path(str(NANO))["GPT"](vocab=64, length=64, width=16, heads=2, depth=depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(64, (2, 65))
    counts = Counter[str]()

    def step() -> None:
        model(text[:, :-1], text[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory() as folder, _everywhere(counts):
        recorder = Recorder(Writer(Path(folder, "trace"), 0, 1, ("count",), {"run": ""}), 3, collectives=False)

        def apart(run: Callable[[], None], waits: int) -> Callable[[], None]:
            def counted_apart(**_: bool) -> None:
                before = counts["reads"]
                run()  # reads what lies on the CPU by then
                counts["reads"], counts["waits"] = before, counts["waits"] + waits

            return counted_apart

        recorder._settle = apart(recorder._settle, 1)  # type: ignore[method-assign]
        recorder.lines.write = apart(recorder.lines.write, 0)  # type: ignore[method-assign,assignment]
        recorder.start()
        step()
        counts.clear()
        with _Counting(recorder, counts):
            step()
        found = dict(counts)
        recorder.close()
        assert not recorder.failed, recorder.failed
    return found


def main() -> None:
    found = counted(4)
    spent = 1e3 * ((found["launches"] + found["operators"]) * LAUNCH_S + found["bytes"] / BYTES_PER_S)
    print(json.dumps(found | {"estimate_ms": round(spent, 2)}))  # noqa: T201


if __name__ == "__main__":
    main()

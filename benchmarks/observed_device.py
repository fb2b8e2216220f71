"""What observing costs a training step on a CUDA device: steps of the nano script observed and not, in turn.

    python -m benchmarks.observed_device

One JSON line a configuration: milliseconds of a plain and of an observed step, the first observed step with its tables
and what Triton compiles, memory at its peak, and what the device and the CPU were given for a step: launches, copies
and waits. The line after them compares the traces of one run on the CPU and on the device. Exit code 1: they differ, or
an observed step takes a quarter more than a plain one.
"""

import argparse
import contextlib
import json
import runpy
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from contracts.observe import device
from contracts.observe.diff import compare
from contracts.observe.merged import Merged
from contracts.observe.recorder import Recorder
from contracts.observe.trace import Writer, read

NANO = Path(__file__).parents[1] / "docs/examples/observe_nano.py"
SIZES = {  # width, tokens, vocabulary, depth, dtype of autocast
    "4 M": (256, 4096, 4096, 4, None),
    "55 M": (1024, 4096, 4096, 4, None),
    "135 M": (1024, 16384, 32768, 8, torch.bfloat16),
}
MOST = 0.25


class Training:
    """The nano script's model and optimizer on a device."""

    def __init__(self, place: str, width: int, tokens: int, vocab: int, depth: int, dtype: torch.dtype | None) -> None:
        torch.manual_seed(0)
        made = runpy.run_path(str(NANO))["GPT"](
            vocab=vocab, length=512, width=width, heads=max(4, width // 64), depth=depth
        )
        self.place, self.dtype, self.model = place, dtype, made.to(place)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        drawn = torch.randint(vocab, (tokens // 512, 513), generator=torch.Generator().manual_seed(0))
        self.text = drawn.to(place)

    def wait(self) -> None:
        if self.place == "cuda":
            torch.cuda.synchronize()

    def step(self, clock: Callable[[], float] = time.perf_counter) -> float:
        self.wait()
        begin = clock()
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None and self.place == "cuda"):
            loss = self.model(self.text[:, :-1], self.text[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.wait()
        return clock() - begin

    @contextlib.contextmanager
    def observed(self, folder: Path, steps: int = 3) -> Iterator[None]:
        recorder = Recorder(Writer(folder, 0, 1, ("benchmark",), {"run": ""}), steps, collectives=False)
        recorder.start()
        yield
        recorder.close()
        assert not recorder.failed, recorder.failed
        assert recorder.done == steps


def equal(folder: Path) -> dict[str, Any]:
    """One run on the CPU and on the device: what `rankproof diff` says, and what agrees only with itself."""
    traces = []
    for place in ("cpu", "cuda"):
        training = Training(place, 128, 2048, 512, 2, None)
        with training.observed(folder / place):
            for _ in range(3):
                training.step()
        traces.append(Merged(read(folder / place)))
    found, whole = compare(*traces), compare(traces[0], traces[0])
    want, got = ({each.rpartition(" (")[0] for each in one.agreed} for one in (whole, found))
    absent = sorted(want - got)
    agree = len(whole.agreed) > 18 and not (absent or found.differences or found.incomparable or found.unseen)
    return {"traces": "equal" if agree else "differ", "agreed": len(found.agreed), "not_agreed": absent,
            "differences": [str(each)[:200] for each in found.differences[:5]],
            "incomparable": found.incomparable, "unseen": dict(found.unseen)}  # fmt: skip


def given(run: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """What a run gives the device, by kind, and the microseconds of each kernel there."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        run()
    calls, spent = Counter[str](), Counter[str]()
    for each in seen.events():
        if each.device_type == torch.autograd.DeviceType.CUDA:
            spent[each.name[:40]] += round(each.device_time_total)
        elif each.name.startswith(("cudaLaunch", "cuLaunch")):
            calls["launches"] += 1
        elif each.name.startswith(("cudaMemcpy", "cudaMemset")):
            calls["copies"] += 1
        elif "Synchronize" in each.name:
            calls["waits"] += 1
    return calls, spent


def waits(run: Callable[[], object]) -> int:
    """How often a run waits for the device, as torch sees it."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def peak(run: Callable[[], object]) -> int:
    """Bytes that torch has allocated at the most, beyond those that it had."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def measured(name: str, folder: Path, pairs: int) -> dict[str, Any]:
    training = Training("cuda", *SIZES[name])
    count = sum(each.numel() for each in training.model.parameters())

    def observed(label: str) -> list[float]:
        with training.observed(folder / label):
            return [training.step() for _ in range(3)]

    for _ in range(3):
        training.step()
    plain_peak = peak(lambda: [training.step(), training.step()])
    first: list[list[float]] = []
    more = peak(lambda: first.append(observed("first"))) - plain_peak
    plain, several = [training.step()], []
    for pair in range(pairs):
        several.append(observed(str(pair)))
        plain += [training.step(), training.step()]
    seen = [statistics.median(took[1:]) for took in several]
    ratio = statistics.median(seen) / statistics.median(plain) - 1
    plain_calls, _ = given(training.step)
    with training.observed(folder / "given", 4):
        training.step()
        training.step()
        calls, spent = given(training.step)
        stops = waits(training.step)
    own = {each: spent[each] for each in ("batched", "parameters", "bits", "ordered", "summed", "numbered", "few")}
    return {
        "size": name, "parameters_M": round(count / 1e6, 1), "plain_ms": round(1e3 * statistics.median(plain), 2),
        "observed_ms": round(1e3 * statistics.median(seen), 2), "more_pct": round(100 * ratio, 1),
        "least_plain_ms": round(1e3 * min(plain), 2), "least_observed_ms": round(1e3 * min(seen), 2),
        "first_observed_ms": round(1e3 * first[0][0], 1),
        "observed_ms_by_step": [round(1e3 * statistics.median(each), 2) for each in zip(*several, strict=True)],
        "more_memory_MiB": round(more / 2**20, 1), "more_memory_pct_of_weights": round(100 * more / (4 * count), 1),
        "own": {each: calls[each] - plain_calls[each] for each in calls}, "waits": stops, "kernels_us": own,
        "most_us": dict((spent - Counter(own)).most_common(6)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=SIZES)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device", file=sys.stderr)  # noqa: T201
        return 3
    failed = False
    with tempfile.TemporaryDirectory() as held:
        for name in [asked.only] if asked.only else SIZES:
            said = measured(name, Path(held, name), asked.pairs)
            print(json.dumps(said), flush=True)  # noqa: T201
            failed = failed or said["more_pct"] > 100 * MOST
            torch.cuda.empty_cache()
        said = equal(Path(held, "equal"))
        said |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                 "kernels": device.here(torch.empty(1, device="cuda"))}  # fmt: skip
        print(json.dumps(said), flush=True)  # noqa: T201
        failed = failed or said["traces"] != "equal"
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

"""The GPU tier in one command: the law, its counterexamples, the benchmarks, and a receipt of steps on the device.

    python -m benchmarks.gpu --out reports/gpu                     # at most ten minutes (--budget 10)
    python -m benchmarks.gpu --out reports/gpu --resume            # what was cut off or has not begun
    python -m benchmarks.gpu --out reports/gpu --only cold,mutants
    python -m benchmarks.gpu --out reports/gpu-rehearsal --device cpu

Nothing is installed. Timings run by themselves on the device and first; what is about numbers runs beside each
other; what tunes itself for minutes comes last. Each part says its lines as they come and keeps them in DIR/NAME.txt.
On a CPU it is a rehearsal of the same commands: the law is not run there and says so, everything else is small.

The exit code is the worst of the parts: 1 violated, 2 usage, 4 broken, 3 incomplete, 5 nothing ran. A part that was
cut off, has not begun or lacks a package is incomplete.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import LAW
from contracts.court import profiles
from contracts.harness.families import read_checks
from contracts.instruments.atomic_write import write_whole
from contracts.spec.interpreter import python

WORST = (1, 2, 4, 3, 5, 0)  # as in the Makefile
INCOMPLETE, BROKEN, NOTHING_RAN = 3, 4, 5
APART = {
    "cold": "COMP-02g", "lengths": "COMP-04g", "compiled": "COMP-01g", "modules": "BLK-08b,PREC-03b",
    "scans": "BLK-08a",
}  # fmt: skip
"""Contracts that take long and have a process of their own: part → what it judges."""
PACKAGES = {"scans": "mamba_ssm", "modules": "transformer_engine"}
"""Parts that are about a package, which is not installed everywhere."""
MUTANTS = "tests_unit/gate/test_every_contract_can_fail.py"
GRACE_S = 10.0
HEARD_S = 0.2  # how late a stop may be heard
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command in a process of its own: what one leaves in a compiler's memory is not there for the next.

    `says` is what it says if anything ran: pytest ends with 0 where every test was skipped.
    """

    name: str
    words: tuple[str, ...]
    limit_s: float
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a part ended. `words`: why it did not come to its end, or did not begin."""

    name: str
    code: int
    seconds: float = 0.0
    words: str = ""


def groups(out: Path, device: str) -> list[list[Part]]:
    """The parts in their order; those of a group run beside each other."""
    layer = (
        "-m",
        "benchmarks",
        "--device",
        device,
        "--out",
        str(out / "moe"),
        *(["--small"] if device == "cpu" else []),
    )

    def law(name: str, profile: str, limit_s: float) -> Part:
        words = ("-m", "contracts.harness.cli", "check", "--with", "none", "--profile", profile)
        return Part(name=name, words=(*words, "--report", str(out / name)), limit_s=limit_s)

    def mutants(name: str, chosen: str, limit_s: float) -> Part:
        words = ("-m", "pytest", "-p", "no:benchmark", "-q", "-rs", "-m", "gpu", *_shared(), MUTANTS, "-k", chosen)
        return Part(name=name, words=words, limit_s=limit_s, says=" passed")

    tuned = "BLK-08a"
    return [
        [Part(name="moe", words=layer, limit_s=150)],
        [Part(name="observe", words=("-m", *_observed(device)), limit_s=90)],
        [Part(name="receipt", words=("-m", "benchmarks.receipt", "--device", device, "--out", str(out)), limit_s=60)],
        [law(name, APART[name], 300) for name in ("cold", "lengths", "compiled")]
        + [law("rest", _rest(), 200), mutants("mutants", f"not {tuned} and {_without(APART['modules'])}", 300)],
        [law("modules", APART["modules"], 120), mutants("of-modules", APART["modules"].replace(",", " or "), 120)],
        [law("scans", APART["scans"], 300), mutants("of-scans", tuned, 300)],
    ]


def _observed(device: str) -> tuple[str, ...]:
    """What observing costs a step there; on a CPU one small pair of steps."""
    small = ("benchmarks.observed", "--pairs", "1", "--width", "64", "--tokens", "1024")
    return small if device == "cpu" else ("benchmarks.observed_device",)


def _without(ids: str) -> str:
    return " and ".join(f"not {id}" for id in ids.split(","))


def _rest() -> str:
    """What of the tier has no part of its own, contracts without a check included."""
    read_checks()
    apart = {id for named in APART.values() for id in named.split(",")}
    return ",".join(id for id in profiles.plan(LAW, "gpu").promises if id not in apart)


def _shared() -> tuple[str, ...]:
    return ("-n", "4") if importlib.util.find_spec("xdist") else ()


def main(argv: list[str]) -> int:
    asked = _asked(argv)
    asked.out = asked.out.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    every = groups(asked.out, asked.device)
    names = [part.name for group in every for part in group]
    chosen = set(asked.only.split(",")) if asked.only else set(names)
    if unknown := chosen - set(names):
        _say(f"--only {','.join(sorted(unknown))}: the parts are {', '.join(names)}")
        return 2
    run = Run(asked.out, asked.device, until=time.monotonic() + 60 * asked.budget, resume=asked.resume)
    for number in (signal.SIGTERM, signal.SIGINT):  # heard between parts: an exception could lose a thread that starts
        signal.signal(number, lambda *_: run.stopped.set())
    try:
        for group in every:
            run.beside_each_other([part for part in group if part.name in chosen])
    except KeyboardInterrupt:
        _say("stopped")
    for part in (part for group in every for part in group if part.name in chosen):
        ended = run.ended.get(part.name, Ended(name=part.name, code=INCOMPLETE, words="has not begun"))
        _say(f"{ended.code}  {part.name}: {ended.words or 'ended'}, {ended.seconds:.0f} s")
        run.ended[part.name] = ended
    return worst(ended.code for ended in run.ended.values() if ended.name in chosen)


def worst(codes: Iterator[int] | Collection[int]) -> int:
    return min(codes, key=WORST.index, default=5)


class Run:
    """Parts that run within a time, and what is known of those that have ended, which is kept as they end."""

    def __init__(self, out: Path, device: str, *, until: float, resume: bool) -> None:
        self.out, self.until, self.rehearsal = out, until, device == "cpu"
        self.state, self.source = out / "parts.json", f"{_commit()} on {device}"
        self.ended: dict[str, Ended] = {}
        if resume and self.state.exists():
            kept = json.loads(self.state.read_text())
            if kept["source"] == self.source:
                self.ended = {each["name"]: Ended(**each) for each in kept["ended"]}
            else:
                _say(f"begun anew: the parts in {self.state} are of {kept['source']}, this is {self.source}")
        self.stopped = threading.Event()
        self._lock, self._running = threading.Lock(), dict[subprocess.Popen[str], threading.Event]()

    def beside_each_other(self, parts: Sequence[Part]) -> None:
        with ThreadPoolExecutor(len(parts) or 1) as pool:
            running = [pool.submit(self._run, part) for part in parts if self._is_to_run(part)]
            while wait(running, timeout=HEARD_S).not_done:
                if self.stopped.is_set():
                    self.stop()
                    break
            for each in running:
                each.result()
        if self.stopped.is_set():
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Cut off what runs."""
        self.until = 0.0
        for running, late in [*self._running.items()]:
            _end(running, late)

    def _is_to_run(self, part: Part) -> bool:
        if part.name in self.ended:
            _say(f"== {part.name}: ended in an earlier run with {self.ended[part.name].code}")
            return False
        package = PACKAGES.get(part.name.removeprefix("of-"))
        if package and not self.rehearsal and importlib.util.find_spec(package) is None:
            words = f"skipped, {package} is not installed (docs/gpu.md)"
            _say(f"== {part.name}: {words}")
            self.ended[part.name] = Ended(name=part.name, code=INCOMPLETE, words=words)
            return False
        return self._left_s(part) > 0

    def _left_s(self, part: Part) -> float:
        return min(part.limit_s, self.until - time.monotonic())

    def _run(self, part: Part) -> None:
        """Run it to its end or its limit; only an end is kept for `--resume`."""
        began, limit_s = time.monotonic(), self._left_s(part)
        _say(f"== {part.name}: python {' '.join(part.words)}")
        code = self._code(part, limit_s)
        seconds = round(time.monotonic() - began, 1)
        if code is None:
            ended = Ended(name=part.name, code=INCOMPLETE, seconds=seconds, words=f"cut off after {limit_s:.0f} s")
        else:
            ended = Ended(name=part.name, code=code if code in WORST else BROKEN, seconds=seconds)
        with self._lock:
            self.ended[part.name] = ended
            kept = [vars(each) for each in self.ended.values() if not each.words]
            write_whole(self.state, json.dumps({"source": self.source, "ended": kept}, indent=1) + "\n")
        _say(f"== {part.name}: {ended.words or f'exit code {code}'}, {seconds:.0f} s")

    def _code(self, part: Part, limit_s: float) -> int | None:
        """Its exit code; None where it was cut off. Its children go with it."""
        command = python(*part.words)
        with (self.out / f"{part.name}.txt").open("w") as log, subprocess.Popen(
            command, cwd=ROOT, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        ) as running:  # fmt: skip
            late = threading.Event()
            cut = threading.Timer(limit_s, _end, args=(running, late))
            cut.start()
            self._running[running] = late
            if self.until == 0.0:  # stopped meanwhile
                _end(running, late)
            assert running.stdout is not None
            ran = not part.says
            for line in running.stdout:
                ran = ran or part.says in line
                log.write(line)
                log.flush()
                _say(f"[{part.name}] {line.rstrip()}")
            running.wait()
            del self._running[running]
            cut.cancel()
        if late.is_set():
            return None
        return running.returncode or (0 if ran else NOTHING_RAN)

    def _environment(self) -> dict[str, str]:
        """Kernels that one process tunes or compiles are there for the next; COMP-02g starts without them anyway."""
        cache = self.out / "cache"
        ours = {"TRITON_CACHE_AUTOTUNING": "1", "TRITON_CACHE_DIR": str(cache / "triton"),
                "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "PYTHONUNBUFFERED": "1"}  # fmt: skip
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the benchmarks are no installed package
        return {**ours, **os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _end(running: subprocess.Popen[str], late: threading.Event) -> None:
    """Cut it off: the whole group is asked, then killed."""
    late.set()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and running.poll() is None:
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGKILL)


def _commit() -> str:
    described = ["git", "describe", "--always", "--dirty=+dirty"]
    done = subprocess.run(described, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _asked(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", metavar="PART,PART", help="these parts")
    parser.add_argument("--resume", action="store_true", help="leave out what ended in DIR on the same commit")
    parser.add_argument("--budget", type=float, default=10.0, metavar="MINUTES", help="what all may take (10)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What correct machines differ in: the axes along which the verdict on one stack must stay the same."""

import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OTHER_TORCH = ("2.11.0", "2.12.1")  # the oldest of the declared range, and the one between it and constraints.txt
SUMS = ("Reversed", "Blocked", "Pairwise", "Unfused")
REORDERED = "contracts.stacks.reordered"
BUSY = 8
ON_CARDS = frozenset({"KRN-01g", "KRN-03c"})  # where there is a card they compute on it, whatever device was asked for
FACTS_S = 300.0  # a cold import of torch with CUDA takes half a minute on a busy disk

_LOOK = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
    "mkl": torch.backends.mkl.is_available(), "onednn": torch.backends.mkldnn.is_available(),
    "build": torch.__config__.show().split(), "built_for": torch.version.cuda,
    "cuda": torch.cuda.get_device_name() if cuda else None}))
"""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One place on an axis: variables, words for `rankproof check`, another interpreter, busy processes beside it, and
    contracts that it leaves out because it cannot judge them."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    python: str = ""
    busy: int = 0
    leaves: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The levels of each axis, the first of them the plain one, and what this machine lacks, in words."""

    levels: Mapping[str, tuple[Level, ...]]
    absent: tuple[str, ...] = ()

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        return {axis: tuple(level.name for level in levels) for axis, levels in self.levels.items()}

    def of(self, row: Sequence[str]) -> list[Level]:
        found = zip(self.levels.values(), row, strict=True)
        return [next(level for level in levels if level.name == name) for levels, name in found]


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """What Linux says of the processor; a kind without such flags has none."""

    model: str
    vendor: str
    flags: frozenset[str]
    cores: int


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The facts of an interpreter's torch; `cuda` is the name of the first device, `build` how it was built, and
    `built_for` the release of CUDA, if any."""

    python: str
    version: str
    capability: str
    mkl: bool
    onednn: bool
    build: str
    built_for: str | None
    cuda: str | None


def cpu(cpuinfo: str | None = None) -> Cpu:
    """The processor of this machine, or the one that a /proc/cpuinfo describes."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if cpuinfo is None else cpuinfo
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    return Cpu(
        model=said.get("model name", platform.machine()),
        vendor=said.get("vendor_id", ""),
        flags=frozenset((said.get("flags") or said.get("Features", "")).split()),
        cores=len(os.sched_getaffinity(0)),
    )


def torch_of(python: str) -> Torch | str:
    """The facts of an interpreter's torch, or why there is none. torch is not loaded here."""
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", _LOOK], capture_output=True, text=True, timeout=FACTS_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Torch(python=python, **{**said, "build": " ".join(said["build"])})


def axes(device: str, cpu: Cpu, torches: Sequence[Torch], *, stack: str, judging: Sequence[Level]) -> Axes:
    """The axes of one device on this machine.

    Args:
        torches: the judging interpreter's first.
        stack: only the reference's sums are known in other orders.
        judging: how the stack is judged.
    """
    levels, absent = _of_cuda() if device == "cuda" else _of_cpu(cpu, torches[0])
    sums = [Level(name="as is", options=("--stack", stack))]
    if stack != "reference":
        absent.append(f"sums in another order: known of the reference, not of {stack}")
    elif importlib.util.find_spec(REORDERED) is None:
        absent.append(f"sums in another order: {REORDERED} is not there")
    else:
        sums += [Level(name=name, options=("--stack", f"{REORDERED}:{name}")) for name in SUMS]
    others = [Level(name=found.version, python=found.python) for found in torches]
    for_cuda = next((found for found in torches if found.built_for), None)
    if for_cuda is None:
        absent.append("forks: they are watched in a build of torch for CUDA (make torch TORCH=2.11.0)")
    elif device == "cpu" and for_cuda.cuda is None:
        others += [
            Level(name=f"{for_cuda.version} {words}", python=for_cuda.python,
                  environment={"PYTHONPATH": str(ROOT / "benchmarks/card"), "RANKPROOF_CARD": cards},
                  options=("--device", "cpu"), leaves=leaves)
            for words, cards, leaves in (("without a card", "0", frozenset()), ("with an imitated card", "1", ON_CARDS))
        ]  # fmt: skip
    for version in OTHER_TORCH:
        if not any(found.version.partition("+")[0] == version for found in torches):
            absent.append(f"torch {version}: not installed here (make torch TORCH={version})")
    load = (Level(name="none"), Level(name=f"{BUSY} busy", busy=BUSY))
    every = {**levels, "sums": tuple(sums), "torch": tuple(others), "load": load, "judging": tuple(judging)}
    return Axes(levels=every, absent=tuple(absent))


def _threads(*counts: int) -> tuple[Level, ...]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return tuple(Level(name=str(count), environment=dict.fromkeys(names, str(count))) for count in counts)


def _of_cpu(cpu: Cpu, torch: Torch) -> tuple[dict[str, tuple[Level, ...]], list[str]]:
    """Only steps below what is taken as it is: the highest one a machine has is the plain level by another name."""
    absent = []
    aten, known = [Level(name="as is")], ["DEFAULT", "AVX2", "AVX512"]
    if torch.capability in known:
        below = known[: known.index(torch.capability)]
        aten += [Level(name=each.lower(), environment={"ATEN_CPU_CAPABILITY": each.lower()}) for each in below]
        absent += [
            f"ATEN_CPU_CAPABILITY={each.lower()}: this CPU has it not, torch takes {torch.capability}"
            for each in known[known.index(torch.capability) + 1 :]
        ]
    else:
        absent.append(f"ATEN_CPU_CAPABILITY: torch takes {torch.capability} here and knows no other")
    onednn = [Level(name="as is")]
    steps = {"SSE41": {"sse4_1"}, "AVX2": {"avx2"}, "AVX512_CORE": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
             "AVX512_CORE_AMX": {"amx_tile", "amx_bf16"}}  # fmt: skip
    has = [name for name, flags in steps.items() if flags <= cpu.flags]
    if torch.onednn:
        onednn += [Level(name=name, environment={"DNNL_MAX_CPU_ISA": name}) for name in has[:-1]]
        absent += [f"DNNL_MAX_CPU_ISA={name}: this CPU has it not" for name in steps if name not in has]
    else:
        absent.append("DNNL_MAX_CPU_ISA: this torch was built without oneDNN")
    mkl = [Level(name="as is")]
    if torch.mkl:
        mkl.append(Level(name="compatible", environment={"MKL_CBWR": "COMPATIBLE"}))
        if cpu.vendor == "GenuineIntel":
            mkl.append(Level(name="SSE4_2", environment={"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}))
        else:
            absent.append("MKL_ENABLE_INSTRUCTIONS=SSE4_2: MKL heeds it on Intel's processors only")
    else:
        absent.append("MKL_CBWR, MKL_ENABLE_INSTRUCTIONS: this torch was built without MKL")
    return {"aten": tuple(aten), "onednn": tuple(onednn), "mkl": tuple(mkl), "threads": _threads(1, 2, 4)}, absent


def _of_cuda() -> tuple[dict[str, tuple[Level, ...]], list[str]]:
    """NVIDIA_TF32_OVERRIDE=1 is not among them: it takes products in float32 at ten bits, which no check permits."""

    def switched(variable: str, *values: str) -> tuple[Level, ...]:
        return (Level(name="as is"), *(Level(name=value, environment={variable: value}) for value in values))

    levels = {
        "cublas": switched("CUBLAS_WORKSPACE_CONFIG", ":4096:8", ":16:8"),
        "tf32": switched("NVIDIA_TF32_OVERRIDE", "0"),
        "launches": switched("CUDA_LAUNCH_BLOCKING", "1"),
        "memory": switched("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        "threads": _threads(1, 4),
    }
    return levels, ["NVIDIA_TF32_OVERRIDE=1: not a machine's but a user's choice, and another precision"]


def interpreters(named: Sequence[str]) -> list[str]:
    """This one, those named, and the environments that `make torch` made."""
    made = [ROOT / f".venv-torch-{version}/bin/python" for version in OTHER_TORCH]
    return [sys.executable, *named, *(str(each) for each in made if each.exists())]

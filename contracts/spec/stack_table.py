"""The stack table as data, and the comparison of an environment with it, line by line.

The table comes from the source articles: their H200:8 hosts, spring 2026.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from contracts.spec.installation import InstalledPart, Source, StackLine, StackTable
from contracts.spec.machine import Finding

State = Literal["equal", "differs", "missing", "twice", "other source", "unreadable"]

_NIGHTLY = "PyTorch nightly cu132 index"
_PREBUILT = "pre-built wheel (cu132)"


def _line(
    component: str, version: str, source: Source, origin: str, *distributions: str, at_least: bool = False,
    no_deps: bool = False,
) -> StackLine:  # fmt: skip
    return StackLine(
        component=component, version=version, source=source, origin=origin, distributions=distributions,
        at_least=at_least, no_deps=no_deps,
    )  # fmt: skip


H200 = StackTable(
    name="h200-cu132",
    lines=(
        _line("python", "3.13.12", "system", "deadsnakes PPA"),
        _line("torch", "2.12.0.dev20260405+cu132", "index", _NIGHTLY),
        _line("triton", "3.7.0+git9c288bc5", "bundled", "torch nightly", "triton", "pytorch-triton"),
        _line("cuda-toolkit", "13.2", "system", "apt install cuda-toolkit-13-2"),
        _line("driver", "590.48", "system", "host image", at_least=True),
        _line("flash-attn", "2.8.3", "wheel", _PREBUILT),
        _line("flash-attn-4", "4.0.0b7", "index", "PyPI, with --pre"),
        _line("mamba-ssm", "2.3.1", "wheel", _PREBUILT),
        _line("causal-conv1d", "1.6.1", "wheel", _PREBUILT),
        _line("torchao", "0.17.0", "index", "PyPI"),
        _line("flash-linear-attention", "0.5.0", "git", "git HEAD", no_deps=True),
        _line("fla-core", "0.4.2", "index", "PyPI", no_deps=True),
        _line("dualpipe", "1.0.0", "index", "PyPI"),
        _line("cutlass-dsl", "4.4.2", "bundled", "flash-attn-4", "nvidia-cutlass-dsl"),
        _line("quack-kernels", "0.3.9", "bundled", "flash-attn-4"),
        _line("qoptim-cuda", "0.0.0", "wheel", _PREBUILT),
        _line("cudnn", "9.20.0.48", "bundled", "torch nightly", "nvidia-cudnn-cu13"),
        _line("nccl", "2.29.7", "bundled", "torch nightly", "nvidia-nccl-cu13"),
        _line("nsys", "2025.6.3", "system", "CUDA toolkit"),
        _line("gcc", "11.4.0", "system", "Ubuntu 22.04"),
    ),
)
"""Source: the stack table of the bring-up article. Every pre-built wheel was compiled against the ABI of `torch`."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One line of a table, and the components found for it."""

    line: StackLine
    found: tuple[InstalledPart, ...]
    state: State


def normal(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503): `flash_attn` is `flash-attn`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...] | None:
    """The numbers at the head of a version, or None when it has none: `590.48.01` → (590, 48, 1)."""
    match = re.match(r"\s*v?([0-9]{1,9}(?:\.[0-9]{1,9}(?![0-9]))*)(?![0-9])", version)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def same_version(one: str, other: str) -> bool:
    """Whether two versions are equal (PEP 440: case and separators of the local part do not count)."""
    return _spelled(one) == _spelled(other)


def _spelled(version: str) -> tuple[tuple[int, ...] | None, str]:
    numbers = release(version)
    rest = re.sub(r"^\s*v?\d+(?:\.\d+)*", "", version).strip().lower()
    public, _, local = rest.partition("+")
    public = re.sub(r"[-_.]", "", public)
    while numbers and numbers[-1] == 0 and len(numbers) > 1:
        numbers = numbers[:-1]
    return numbers, f"{public}+{re.sub(r'[-_.]+', '.', local)}"


def fits(line: StackLine, version: str) -> bool:
    """Whether a version is the line's, or at least its minimum. Compared as numbers: 590.105 is above 590.48."""
    if not line.at_least:
        return same_version(line.version, version)
    floor, found = release(line.version), release(version)
    return floor is not None and found is not None and found >= floor


def compare(table: StackTable, installed: Iterable[InstalledPart]) -> tuple[Compared, ...]:
    """Every line of the table, in order, with the components found for it."""
    held: dict[str, list[InstalledPart]] = {}
    for part in installed:
        held.setdefault(normal(part.name), []).append(part)
    compared = []
    for line in table.lines:
        names = dict.fromkeys(normal(name) for name in (line.component, *line.distributions))
        found = tuple(part for name in names for part in held.get(name, ()))
        compared.append(Compared(line=line, found=found, state=_state(line, found)))
    return tuple(compared)


def _state(line: StackLine, found: tuple[InstalledPart, ...]) -> State:
    if not found:
        return "missing"
    if any(part.version is None or release(part.version) is None for part in found):
        return "unreadable"
    if not all(fits(line, part.version or "") for part in found):
        return "differs"
    if len(found) > 1:
        return "twice"
    source = found[0].source
    # A bundled component has the source of the line that installed it, which its own metadata does not show.
    told = source is not None and line.source != "bundled"
    return "other source" if told and source != line.source else "equal"


def findings(table: StackTable, installed: Iterable[InstalledPart]) -> tuple[Finding, ...]:
    """Findings: the lines that differ, an empty table, and components with two lines."""
    found = [_finding(each) for each in compare(table, installed) if each.state != "equal"]
    components = [normal(line.component) for line in table.lines]
    if not components:
        found.append(
            Finding(promise="INST-01", field="table", value=table.name, problem="has no line, so it compares nothing",
                    remedy="state the stack")
        )  # fmt: skip
    found += [
        Finding(promise="INST-01", field=name, value=table.name, problem=f"{name} stands in the table twice",
                remedy="keep one line")
        for name in dict.fromkeys(name for name in components if components.count(name) > 1)
    ]  # fmt: skip
    return tuple(found)


def _finding(each: Compared) -> Finding:
    line = each.line
    wanted = f"{line.version} or later" if line.at_least else line.version
    versions = ", ".join(_shown(part) for part in each.found)
    problem, remedy = {
        "missing": (f"is not installed, the table says {wanted}", f"install it: {line.origin or line.source}"),
        "unreadable": (f"says no version, the table says {wanted}", "ask the part itself; nothing known is no match"),
        "differs": (f"is {versions}, the table says {wanted}", "install the table's, or change the table"),
        "twice": (f"is installed {len(each.found)} times: {versions}", "remove all but one; which one loads is chance"),
        "other source": (
            f"{versions} comes from {each.found[0].source if each.found else None}, the table says {line.source}",
            f"install it from {line.origin or line.source}",
        ),
    }[each.state]
    return Finding(promise="INST-01", field=line.component, value=versions or "nothing", problem=problem, remedy=remedy)


def _shown(part: InstalledPart) -> str:
    return f"{part.version} ({part.place})" if part.place else str(part.version)

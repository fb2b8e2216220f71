"""The provenance of a run, taken before any heavy import: revision, work tree, machine, runtime, devices.

Nothing here imports a framework, and nothing here fails: what cannot be determined is recorded as unknown.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from contracts.instruments import packages
from contracts.spec import Refused, codec
from contracts.spec.fabric import read_fabric
from contracts.spec.receipt import Component, MachineClass, Place, Provenance, Source

HEAVY = ("torch", "triton", "jax", "transformer_engine", "megatron", "torchtitan", "mamba_ssm", "flash_attn")
TIMEOUT_S = 10.0
PACKAGES_S = 60.0
"""For reading every source of the runtime packages once, from a cold disk."""
MOST_CHANGED = 200
"""The maximal number of changed files to list; a work tree with more is still dirty."""

_DEVICES = ("nvidia-smi", "--query-gpu=index,pci.bus_id,driver_version,name", "--format=csv,noheader")
_SHEBANG = re.compile(r"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(\S*python[\d.]*)")


def take(*, folder: Path, host: str | None, devices: int, image: str | None = None) -> Provenance:
    """The provenance of a run that starts from `folder` on `devices` GPUs of this node."""
    loaded = tuple(name for name in HEAVY if name in sys.modules)
    python, components = runtime()
    seen = _device_lines()
    return Provenance(
        source=source(folder),
        machine=MachineClass(
            host=host,
            device=", ".join(sorted({line[3] for line in seen})) or None,
            devices=devices,
            driver=", ".join(sorted({line[2] for line in seen})) or None,
        ),
        python=python,
        image=image,
        components=components,
        loaded=loaded,
    )


def source(folder: Path) -> Source:
    """The revision and the state of the work tree that contains a folder.

    Names come from git and no file is opened, so a staged file that is gone and a name with a newline need no special
    case.
    """
    revision = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=normal")
    if status is None:
        return Source(revision=revision and revision.strip(), dirty=None)
    changed = changed_files(status)
    return Source(revision=revision and revision.strip(), dirty=bool(changed), changed=changed[:MOST_CHANGED])


def changed_files(status: str) -> tuple[str, ...]:
    """The paths in the output of `git status --porcelain=v1 -z`, in which a rename is followed by the old name."""
    fields = iter(status.split("\0"))
    found = []
    for field in fields:
        if not field:
            continue
        found.append(field[3:])
        if field[0] in "RC" or field[1:2] in {"R", "C"}:
            next(fields, None)
    return tuple(found)


def _git(folder: Path, *words: str) -> str | None:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        ).stdout.decode("utf-8", "replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None


def runtime() -> tuple[str, tuple[Component, ...]]:
    """Version and packages of the interpreter that `torchrun` starts; of this one if torchrun is not a script."""
    command = [_interpreter(), "-I", str(Path(packages.__file__))]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=PACKAGES_S, stdin=subprocess.DEVNULL)
        said = json.loads(done.stdout)
        return str(said["python"]), codec.decode(tuple[Component, ...], said["components"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return platform.python_version(), ()


def _interpreter() -> str:
    torchrun = shutil.which("torchrun")
    try:
        with open(torchrun or os.devnull, "rb") as script:  # noqa: PTH123  # a Path adds nothing to one line
            match = _SHEBANG.match(script.readline(500).decode("utf-8", "replace"))
    except OSError:
        match = None
    found = match and (match[1] if match[1].startswith("/") else shutil.which(match[1]))
    return found or sys.executable


def places(count: int, topology: str | None) -> tuple[Place, ...]:
    """The device of each local rank: rank n on device n, as torchrun starts them, with its bus and nearest NICs.

    `topology` is the output of `nvidia-smi topo -m`. A rank that chooses another device must report that itself.
    """
    buses = {int(line[0]): line[1] for line in _device_lines()}
    nics = _nearest_nics(topology)
    return tuple(
        Place(local_rank=rank, device=rank if rank in buses else None, bus=buses.get(rank), nic=nics.get(f"GPU{rank}"))
        for rank in range(count)
    )


def _nearest_nics(topology: str | None) -> dict[str, str]:
    if topology is None:
        return {}
    try:
        fabric = read_fabric(topology)
        return {gpu: ",".join(fabric.nearest_nics(gpu)) for gpu in fabric.gpus} if fabric.nics else {}
    except (Refused, ValueError, KeyError):
        return {}


def _device_lines() -> list[list[str]]:
    """Index, bus, driver and name of every device; empty if unknown."""
    try:
        done = subprocess.run(
            _DEVICES, capture_output=True, text=True, errors="replace", check=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [fields for fields in _fields(done.stdout.splitlines()) if len(fields) == len(_COLUMNS)]


_COLUMNS = ("index", "pci.bus_id", "driver_version", "name")


def _fields(lines: Iterable[str]) -> Iterable[list[str]]:
    for line in lines:
        fields = [field.strip() for field in line.split(",", len(_COLUMNS) - 1)]
        if fields[0].isdecimal():
            yield fields


def on_host(taken: Provenance, host: str | None) -> Provenance:
    """The same provenance with the host's lineage filled in."""
    return replace(taken, machine=replace(taken.machine, host=host))

"""What is installed and where state lies: the stack table, install plans, the storage map (INST, STOR).

This file has the values and the questions; `stack_table`, `install_plan` and `storage` have the rules. What a machine
shows goes in unparsed (versions as text, `/proc/self/mountinfo` verbatim), because a stack may also parse it wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.machine import Finding
from contracts.spec.party import Party

Source = Literal["system", "index", "wheel", "git", "directory", "bundled"]
"""`system`: the host's image or package manager. `index`: a package index. `wheel`: a pre-built file. `git`: a revision
of a repository. `directory`: a folder, which does not show its revision. `bundled`: installed by another line of the
table."""

Kind = Literal["environment", "torch", "packages", "verify"]


@dataclass(frozen=True, kw_only=True)
class StackLine:
    """One line of a stack table.

    Args:
        component: its common name.
        distributions: names of the Python distributions that contain it, where they differ; any of them will do.
        at_least: the version is a minimum (`590.48+`), not the exact version.
        origin: where exactly it comes from, in words; `source` is the part of it that a machine can detect.
        no_deps: it must be installed with `--no-deps`.
    """

    component: str
    version: str
    source: Source
    origin: str = ""
    distributions: tuple[str, ...] = ()
    at_least: bool = False
    no_deps: bool = False


@dataclass(frozen=True, kw_only=True)
class StackTable:
    """Every component that a stack runs on, with its version and source."""

    name: str
    lines: tuple[StackLine, ...]


@dataclass(frozen=True, kw_only=True)
class InstalledPart:
    """One component found in an environment. A name that is found twice is listed twice.

    Args:
        version: as the component reports it; None when it reports none, or garbage.
        source: None when unknown.
        place: where it was found.
    """

    name: str
    version: str | None
    source: Source | None = None
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class InstallStep:
    """One step of an install plan, with what pip says it would do.

    Args:
        words: the command.
        would_install: name → version, from pip's dry run with the earlier steps in place. None when pip was not asked
            or did not answer; empty for a step that installs nothing.
        requires: name → the `Requires-Dist` of what would be installed, from the same report.
        error: pip's error, if it gave no report.
    """

    name: str
    kind: Kind
    words: tuple[str, ...]
    would_install: Mapping[str, str] | None = None
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class InstallPlan:
    """How a host gets its stack, step by step.

    Args:
        torch: the version of torch that must be installed at the end, including the local tag.
        data_volume: the mount point under which the virtual environment must lie.
        environment: the directory of the virtual environment.
        guarded: distributions known to require torch. They must be installed with `--no-deps`, or not require torch.
    """

    torch: str
    data_volume: str
    environment: str
    steps: tuple[InstallStep, ...]
    guarded: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """A build of torch: its version with the local tag, and its build settings.

    Args:
        cuda: the CUDA release it was built for (`13.2`); None for a build without CUDA.
        cxx11_abi: which std::string its C++ symbols use; None when unknown.
        python_tag: the interpreter's tag, `cp313`.
    """

    version: str
    cuda: str | None
    python_tag: str
    cxx11_abi: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A compiled package that extends torch.

    Args:
        tag: of its wheel: interpreter, ABI, platform (`cp313-cp313-linux_x86_64`).
        built_for: the torch that it was compiled against; None when nothing records it.
        loads: whether its modules could be imported with the installed torch; None when that was not tried.
        error: the error of the import.
    """

    name: str
    version: str
    tag: str
    built_for: str | None
    cxx11_abi: bool | None = None
    loads: bool | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class StorageMap:
    """The directories of a run. Absolute paths, links not resolved.

    Args:
        durable: checkpoints and other state that a resume needs.
        scratch: compile caches and other files that may be lost.
        receipts: receipts, beside the launch materials.
        data: the root of the training data.
        data_volume: the mount point on which the data must lie.
    """

    durable: str
    scratch: str
    receipts: str
    data: str
    data_volume: str


@dataclass(frozen=True, kw_only=True)
class Disks:
    """The file systems of a host.

    Args:
        mountinfo: `/proc/self/mountinfo`, verbatim.
        links: path of a symbolic link → its target, absolute or relative to its directory.
        directories: existing directories, links resolved. One that is not listed does not exist.
    """

    mountinfo: str
    links: Mapping[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()


class Installation(Party, Protocol):
    """Judgements about an environment, an install plan and the disks. An empty answer means: no objection."""

    def stack_table(self) -> StackTable:
        """The stack table: every component with its version and source."""
        ...

    def compare_stack(self, table: StackTable, installed: tuple[InstalledPart, ...]) -> tuple[Finding, ...]:
        """How the installed components differ from the table. The `field` of a finding is the line's component.

        Names and versions are compared as package indexes do (PEP 503, PEP 440), minimum versions as numbers. The
        source is not compared for a `bundled` line, or for a component of unknown source. Components that the table
        does not name are ignored.
        """
        ...

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        """Every way in which a plan may end with another torch, or replace a package that came with torch.

        The `field` of a finding is the name of the step; a finding about the whole plan may have any.
        """
        ...

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        """How torch differs from the wanted build, and which compiled packages do not fit it.

        `found` is None when no torch is installed. The `field` of a finding is `torch` or the package's name.
        """
        ...

    def check_storage(self, storage: StorageMap, disks: Disks) -> tuple[Finding, ...]:
        """Every reason why state lies in a wrong place. The `field` of a finding is a field of the storage map.

        Links are followed as the kernel does, and a volume is identified by its device. Several directories on one
        volume count as separate places. Scratch and data may lie in memory.
        """
        ...

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        """The variables that put the compile caches of one run below scratch, in a directory with the run's name.

        They cover at least Inductor and Triton. Raises `Refused` for a run name that cannot name a directory (`run`).
        """
        ...

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> tuple[Finding, ...]:
        """Every reason why the caches of a run lie in a wrong place, under the environment that its ranks get.

        The `field` of a finding is the variable.
        """
        ...

"""What is installed and where state lies: the stack table, install plans, the storage map (INST, STOR).

Here stand the values and the questions; the arithmetic over them in `stack_table`, `install_plan` and `storage`. What
a machine shows goes in as it was read (versions as text, `/proc/self/mountinfo` as it stands), because reading it
wrongly is one of the ways to fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from contracts.spec.machine import Finding
from contracts.spec.party import Party

Source = Literal["system", "index", "wheel", "git", "directory", "bundled"]
"""`system`: the host's image or package manager. `index`: a package index. `wheel`: a file built before and kept.
`git`: a revision of a repository. `directory`: a folder, which says nothing about its revision. `bundled`: came with
another line of the table."""

Kind = Literal["environment", "torch", "packages", "verify"]


@dataclass(frozen=True, kw_only=True)
class StackLine:
    """One line of a stack table.

    Args:
        component: the name that people use.
        distributions: the Python distributions that carry it, when they are called otherwise; any of them will do.
        at_least: the version is a floor (`590.48+`) instead of the one version.
        origin: where exactly it comes from, in words; `source` is what a machine can tell of it.
        no_deps: it may be installed with `--no-deps` only.
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
    """The one-page truth about what a stack runs on."""

    name: str
    lines: tuple[StackLine, ...]


@dataclass(frozen=True, kw_only=True)
class InstalledPart:
    """One thing that an environment holds. The same name may be found twice; both are listed.

    Args:
        version: as the part itself says it; None when it is there and does not say, or says garbage.
        source: None when nothing tells.
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
        would_install: name → version, from pip's own dry run with the steps before it in place. None when pip was
            not asked or did not answer; a step that installs nothing has an empty one.
        requires: name → the `Requires-Dist` of what would be installed, from the same report.
        error: what pip said instead of a report.
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
        torch: the one version of torch that must stand at the end, local tag included.
        data_volume: the mount point under which the virtual environment must be made.
        environment: the directory of the virtual environment.
        guarded: distributions known to declare torch: they come with `--no-deps`, or declare nothing about torch.
    """

    torch: str
    data_volume: str
    environment: str
    steps: tuple[InstallStep, ...]
    guarded: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """Which torch it is: the version with its local tag, and what the build says of itself.

    Args:
        cuda: the CUDA release it was built for (`13.2`); None for a build without.
        cxx11_abi: which std::string its C++ symbols use; None when unknown.
        python_tag: the interpreter's own, `cp313`.
    """

    version: str
    cuda: str | None
    python_tag: str
    cxx11_abi: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A compiled package beside torch.

    Args:
        tag: of its wheel: interpreter, ABI, platform (`cp313-cp313-linux_x86_64`).
        built_for: the torch it was compiled against, as far as anybody recorded it; None when nobody did.
        loads: whether its modules were imported beside the installed torch; None when that was not tried.
        error: what the import said.
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
    """Where a run keeps what it writes, and where its data is read. Absolute paths, links not yet resolved.

    Args:
        durable: checkpoints and other state that a resume needs.
        scratch: compile caches and other things that may be lost.
        receipts: the small evidence, beside the launch materials.
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
    """What a host shows of its file systems.

    Args:
        mountinfo: `/proc/self/mountinfo` as it stands.
        links: path of a symbolic link → what it holds, absolute or relative to its directory.
        directories: those that exist, links resolved. One that is not listed is not there.
    """

    mountinfo: str
    links: Mapping[str, str] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()


class Installation(Party, Protocol):
    """What a stack's operator side says of an environment, a plan to install, and the disks.

    No finding means: go on.
    """

    def stack_table(self) -> StackTable:
        """The table of the stack: every component with its version and where it comes from."""
        ...

    def compare_stack(self, table: StackTable, installed: tuple[InstalledPart, ...]) -> tuple[Finding, ...]:
        """What is installed against the table, line by line; the finding's `field` is the line's component.

        Names and versions are compared as indexes compare them, floors as numbers. A `bundled` line is not asked where
        it came from, nor is a part whose source nobody recorded. What no line names does not count.
        """
        ...

    def check_plan(self, plan: InstallPlan) -> tuple[Finding, ...]:
        """Whether a plan can leave another torch than it says, or move what came with torch; the finding's `field` is
        the step's name, or anything where it is about the plan as a whole."""
        ...

    def check_torch(
        self, wanted: TorchBuild, found: TorchBuild | None, extensions: tuple[Extension, ...]
    ) -> tuple[Finding, ...]:
        """Whether torch is the build it was, and the compiled packages fit it. The finding's `field` is `torch` or the
        package's name."""
        ...

    def check_storage(self, storage: StorageMap, disks: Disks) -> tuple[Finding, ...]:
        """Whether state lies where it should; the finding's `field` is a field of the storage map.

        Links are followed as the kernel does. A volume is told by its device. Several directories of one volume are
        several places, and scratch and data may lie in memory.
        """
        ...

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        """The variables that send the caches of one run to a directory of scratch with the run's name, Inductor's and
        Triton's at least. Refuses a run name that no directory can have (`run`)."""
        ...

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> tuple[Finding, ...]:
        """Whether the caches of a run, under the environment that reaches its ranks, lie where they should; the
        finding's `field` is the variable."""
        ...

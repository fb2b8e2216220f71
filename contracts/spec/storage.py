"""The places of state: `/proc/self/mountinfo` parsed, links resolved, durable, scratch and receipts kept apart.

Nothing here reads a disk. A mount table that cannot be parsed is a finding, because a truncated one proves nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contracts.spec.errors import refuse
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.machine import Finding

PLACES = ("durable", "scratch", "receipts")
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variable → directory of the run. Both are set, because Triton's default is the home directory, even under Inductor if
a hand-written kernel is compiled first."""
KEPT = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
"""Further variables that inductor needs in order to use only those directories: see `cache_environment`."""

VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
MAX_LINKS = 40  # the kernel's own limit

_LINE = re.compile(
    r"(?P<id>[0-9]{1,10}) (?P<parent>[0-9]{1,10}) (?P<device>[0-9]{1,10}:[0-9]{1,10}) "
    r"(?P<root>/\S*) (?P<point>/\S*) (?P<options>\S+)"
    r"(?: [a-z_]+(?::\S+)?)* - (?P<kind>\S+) (?P<source>\S*) (?P<super>\S+)"
)


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One mounted file system, as in proc(5). `parent` is the id of the mount that contains its mount point."""

    id: int
    parent: int
    device: str
    point: str
    kind: str
    options: frozenset[str]


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """The mounts of `/proc/self/mountinfo`.

    Raises:
        Refused: for a line that is not in the format of proc(5), for a repeated mount, and without a root.
    """
    mounts: dict[int, Mount] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):  # a name may hold other line breaks
        match = _LINE.fullmatch(line)
        if match is None or int(match["id"]) in mounts:
            raise refuse("mountinfo", line, f"line {number} is not a mount", "read /proc/self/mountinfo whole")
        mounts[int(match["id"])] = Mount(
            id=int(match["id"]), parent=int(match["parent"]), device=match["device"],
            point=_unescaped(match["point"]), kind=match["kind"],
            options=frozenset([*match["options"].split(","), *match["super"].split(",")]),
        )  # fmt: skip
    if not any(_is_root(mount, mounts) for mount in mounts.values()):
        raise refuse("mountinfo", text, "has no root", "read /proc/self/mountinfo whole")
    return tuple(mounts.values())


def _is_root(mount: Mount, known: Iterable[int]) -> bool:
    return mount.point == "/" and (mount.parent == mount.id or mount.parent not in known)


def _unescaped(path: str) -> str:
    """The kernel writes spaces in octal: `/mnt/my\\040disk`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def within(path: str, above: str) -> bool:
    """Whether a path equals a directory or is below it. By components: /mnt/database is not below /mnt/data."""
    return path == above or path.startswith(above.rstrip("/") + "/")


def mount_of(path: str, mounts: tuple[Mount, ...]) -> Mount:
    """The mount that contains a resolved path.

    It walks from the root, from parent to child, as the kernel does: a mount that a later one hides is still in the
    table.
    """
    ids = {mount.id for mount in mounts}
    current = [mount for mount in mounts if _is_root(mount, ids)][-1]
    on = {(mount.parent, mount.point): mount for mount in mounts if mount.id != mount.parent}
    here, points = "", ["/"]
    for part in path.strip("/").split("/"):
        here = f"{here}/{part}"
        points.append(here)
    for point in points:
        while (above := on.get((current.id, point))) is not None:
            current = above
    return current


def resolved(path: str, links: Mapping[str, str]) -> str:
    """An absolute path with every link followed, component by component, as the kernel does.

    Raises:
        Refused: for a path that is not absolute, or whose links form a cycle.
    """
    if not path.startswith("/"):
        raise refuse("path", path, "is not absolute", "give it from /")
    todo, done, followed = path.split("/")[::-1], "", 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done.rpartition("/")[0]
        elif part not in ("", "."):
            here = f"{done}/{part}"
            if here not in links:
                done = here
                continue
            if (followed := followed + 1) > MAX_LINKS:
                raise refuse("path", path, f"its links form a cycle: {here}", "let it lead to a directory")
            todo += links[here].split("/")[::-1]
            done = "" if links[here].startswith("/") else done
    return done or "/"


class _Host:
    """The disks, parsed once."""

    def __init__(self, disks: Disks) -> None:
        self.disks = disks
        self.mounts = parse_mountinfo(disks.mountinfo)
        self.root = mount_of("/", self.mounts)

    def place(self, path: str) -> tuple[str, Mount]:
        real = resolved(path, self.disks.links)
        return real, mount_of(real, self.mounts)

    def on_root_volume(self, mount: Mount) -> bool:
        """Compares devices, because a bind mount of a directory of the root has its own mount point."""
        return mount.point == "/" or mount.device == self.root.device


def storage_findings(storage: StorageMap, disks: Disks) -> tuple[Finding, ...]:
    """Every reason why state lies in a wrong place."""
    try:
        host = _Host(disks)
    except ValueError as error:
        return (_finding("STOR-01", "disks", "mountinfo", str(error), "nothing is known of the disks"),)
    found: list[Finding] = []
    real: dict[str, str] = {}
    for name in (*PLACES, "data"):
        path = getattr(storage, name)
        promise = "STOR-02" if name == "data" else "STOR-01"
        try:
            real[name], mount = host.place(path)
        except ValueError as error:
            found.append(_finding(promise, name, path, str(error), "let it lead to a directory on a data volume"))
            continue
        told = path if real[name] == path else f"{path} leads to {real[name]}, which"
        if real[name] not in disks.directories:
            found.append(_finding(promise, name, path, f"{told} does not exist", "make it, or mend the link"))
        if host.on_root_volume(mount):
            found.append(_finding(promise, name, path, f"{told} lies on the root volume", "use a data volume"))
        elif name in ("durable", "receipts") and mount.kind in VOLATILE:
            found.append(_finding(promise, name, path, f"{told} lies in memory ({mount.kind})", "use a disk"))
        if name != "data" and "ro" in mount.options:
            found.append(_finding(promise, name, path, f"{told} is mounted read-only", "mount it for writing"))
    found += _overlaps(storage, real)
    if "data" in real:
        found += _astray(storage, host, real["data"])
    return tuple(found)


def _overlaps(storage: StorageMap, real: Mapping[str, str]) -> list[Finding]:
    found = []
    pairs = [("durable", "scratch"), ("durable", "receipts"), ("scratch", "receipts"), ("scratch", "data")]
    for one, other in pairs:
        if one not in real or other not in real:
            continue
        inner, outer = (one, other) if within(real[one], real[other]) else (other, one)
        if within(real[inner], real[outer]):
            how = "is" if real[inner] == real[outer] else "lies in"
            found.append(
                _finding("STOR-01", inner, getattr(storage, inner), f"{real[inner]} {how} {outer} {real[outer]}",
                         f"keep {one} and {other} in two places")
            )  # fmt: skip
    return found


def _astray(storage: StorageMap, host: _Host, data: str) -> list[Finding]:
    volume = storage.data_volume.rstrip("/") or "/"
    intended = mount_of(volume, host.mounts)
    if intended.point != volume:
        return [_finding("STOR-02", "data", storage.data_volume, f"no volume is mounted at {volume}", "mount it")]
    if host.on_root_volume(intended):
        return [_finding("STOR-02", "data", volume, f"the volume at {volume} is the root volume", "mount the disk")]
    mount = mount_of(data, host.mounts)
    if mount.device == intended.device:
        return []
    problem = f"{data} lies on the volume at {mount.point}, intended is {volume}"
    return [_finding("STOR-02", "data", storage.data, problem, "point it at the data volume")]


def cache_directories(storage: StorageMap, run: str) -> dict[str, str]:
    """Variable → directory, for one run.

    Raises:
        Refused: for a name that cannot name one directory. A cleaned-up name could be that of another run, and the two
            would share a cache.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}", run):
        raise refuse(
            "run", run, "cannot name a directory", "use letters, digits and . _ + = -, a letter or digit first"
        )
    return {name: f"{storage.scratch.rstrip('/')}/{run}/{leaf}" for name, leaf in CACHES.items()}


def cache_environment(storage: StorageMap, run: str) -> dict[str, str]:
    """The variables of `cache_directories`, and one that turns off inductor's precompiled C++ headers.

    Inductor keeps those headers below TMPDIR, in a folder that no cache variable changes (`_HEADER_DIR` in torch 2.13's
    codecache.py). Without them every C++ kernel parses its headers again; Triton's kernels have none.

    Raises:
        Refused: as `cache_directories`.
    """
    return {**cache_directories(storage, run), **KEPT}


def cache_findings(storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> tuple[Finding, ...]:
    """Every reason why the caches of a run are not in its own scratch directory."""
    try:
        host = _Host(disks)
        real = {name: host.place(getattr(storage, name))[0] for name in ("scratch", "durable", "data")}
    except ValueError as error:
        return (_finding("STOR-03", "disks", "storage", str(error), "nothing is known of the disks"),)
    found = []
    for variable in CACHES:
        if not env.get(variable):
            found.append(
                _finding("STOR-03", variable, "unset", "is unset, so the cache goes to /tmp or the home directory",
                         f"set it below {storage.scratch}/{run}")
            )  # fmt: skip
            continue
        try:
            path, mount = host.place(env[variable])
        except ValueError as error:
            found.append(_finding("STOR-03", variable, env[variable], str(error), "give a directory in scratch"))
            continue
        problems = []
        if not within(path, real["scratch"]):
            problems.append(f"{path} is not in scratch {real['scratch']}")
        elif run not in path[len(real["scratch"]) :].split("/"):
            problems.append(f"{path} is not the run's own: no directory is named {run}")
        problems += [f"{path} lies in {name} {real[name]}" for name in ("durable", "data") if within(path, real[name])]
        if host.on_root_volume(mount):
            problems.append(f"{path} lies on the root volume")
        found += [
            _finding("STOR-03", variable, env[variable], problem, f"set it below {storage.scratch}/{run}")
            for problem in problems
        ]
    return tuple(found)


def _finding(promise: str, field: str, value: str, problem: str, remedy: str) -> Finding:
    return Finding(promise=promise, field=field, value=value, problem=problem, remedy=remedy)

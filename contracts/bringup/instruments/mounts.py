"""The file systems of this host along some paths: mounts, links, directories."""

from collections.abc import Iterable
from pathlib import Path

from contracts.spec import Unreachable
from contracts.spec.installation import Disks

MOUNTINFO = Path("/proc/self/mountinfo")
MAX_LINKS = 40  # the kernel's own limit


def disks(paths: Iterable[str]) -> Disks:
    """The mounts, links and directories along some absolute paths, including every link on the way.

    Raises:
        Unreachable: when the kernel shows no mount table.
    """
    try:
        mountinfo = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise Unreachable(f"{MOUNTINFO} cannot be read: {error.strerror}") from error
    links: dict[str, str] = {}
    directories: set[str] = set()
    for path in paths:
        _walk(path, links, directories)
    return Disks(mountinfo=mountinfo, links=links, directories=frozenset(directories))


def _walk(path: str, links: dict[str, str], directories: set[str]) -> None:
    todo, done, followed = path.split("/")[::-1], "", 0
    while todo and followed <= MAX_LINKS:
        part = todo.pop()
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        if part in ("", "."):
            continue
        here = f"{done}/{part}"
        try:
            links[here] = held = str(Path(here).readlink())
        except OSError:  # not a link, or absent
            done = here
            continue
        followed += 1
        todo += held.split("/")[::-1]
        done = "" if held.startswith("/") else done
    if not todo and Path(done or "/").is_dir():
        directories.add(done or "/")

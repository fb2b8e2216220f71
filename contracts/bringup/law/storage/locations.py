"""The places of state: checkpoints, scratch and receipts in three places, one data volume, each run's caches."""

from dataclasses import replace

from contracts.contract import contract
from contracts.law._support.answers import assert_no_findings, finding_on, refusal_of
from contracts.law._support.disks import DATA, HOST, ROOT, SCRATCH, UNMOUNTED, WELL
from contracts.spec.installation import Disks, Installation, StorageMap

HIDDEN = replace(HOST, mountinfo=f"{HOST.mountinfo}90 28 0:77 / /mnt rw - tmpfs tmpfs rw\n")
"""A later mount on /mnt: the volumes below it are still in the table but can no longer be reached."""
COVERED = replace(HOST, mountinfo=f"{HOST.mountinfo}91 40 0:78 / /mnt/data rw - tmpfs tmpfs rw\n")
COVERING = replace(HOST, mountinfo=HOST.mountinfo.replace(DATA, f"39 28 0:78 / /mnt/data rw - tmpfs tmpfs rw\n{DATA}"
                                                          .replace("40 28", "40 39")))  # fmt: skip
"""Two mounts on one point: the later one, whose parent is the earlier, is what a path reaches."""

Place = tuple[StorageMap, Disks, str, tuple[str, ...]]
"""Storage map, disks, the wrong field ("" when none is), words that the finding must hold."""

PLACES: dict[str, Place] = {
    "three-places": (WELL, HOST, "", ()),
    "one-volume-three-directories": (replace(WELL, scratch="/mnt/data/scratch"), HOST, "", ()),
    "blank-in-the-name": (replace(WELL, durable="/mnt/my disk/checkpoints"), HOST, "", ()),
    "scratch-in-memory": (replace(WELL, scratch="/dev/shm"), HOST, "", ()),
    "checkpoints-in-the-home": (replace(WELL, durable="/root/checkpoints"), HOST, "durable", ("/root/checkpoints",)),
    "scratch-in-tmp": (replace(WELL, scratch="/tmp"), HOST, "scratch", ("/tmp", "root")),
    "receipts-in-the-home": (replace(WELL, receipts="/root"), HOST, "receipts", ("root",)),
    "root-bound-elsewhere": (
        replace(WELL, durable="/mnt/bulk/checkpoints"), HOST, "durable", ("/mnt/bulk/checkpoints", "root"),
    ),
    "volume-not-mounted": (WELL, UNMOUNTED, "durable", ("/mnt/data/checkpoints",)),
    "volume-hidden": (WELL, HIDDEN, "durable", ("/mnt/data/checkpoints",)),
    "volume-covered-by-memory": (WELL, COVERED, "durable", ("/mnt/data/checkpoints", "tmpfs")),
    "memory-covered-by-a-volume": (WELL, COVERING, "", ()),
    "one-directory-for-two": (
        replace(WELL, scratch=WELL.durable), HOST, "durable or scratch", ("durable", "scratch", WELL.durable),
    ),
    "receipts-in-scratch": (
        replace(WELL, receipts="/mnt/scratch/receipts"), HOST, "receipts or scratch", ("/mnt/scratch/receipts",),
    ),
    "one-place-under-two-names": (
        replace(WELL, scratch="/mnt/data/caches"), HOST, "durable or scratch", ("/mnt/data/checkpoints",),
    ),
    "scratch-in-the-data": (
        replace(WELL, scratch="/mnt/data/data/parquet"), HOST, "scratch or data", ("/mnt/data/data",),
    ),
    "checkpoints-in-memory": (replace(WELL, durable="/dev/shm"), HOST, "durable", ("/dev/shm", "tmpfs")),
    "read-only": (replace(WELL, durable="/mnt/frozen/checkpoints"), HOST, "durable", ("/mnt/frozen/checkpoints",)),
    "not-there": (replace(WELL, durable="/mnt/data/nothing"), HOST, "durable", ("/mnt/data/nothing",)),
}  # fmt: skip


@contract(
    "STOR-01", asks="check_storage", cases=PLACES, source="playbook; bringup; naming: non-root writable volume only"
)
def state_scratch_and_receipts_are_three_places(
    stack: Installation, storage: StorageMap, disks: Disks, field: str, words: tuple[str, ...]
) -> None:
    """Durable state, scratch caches and receipts lie in three existing directories, none inside another and none on the
    root volume; durable state and receipts are neither in memory nor on a read-only mount. A violation is refused with
    its path.

    "We have lost a host to a full root volume more than once." When the three share one tree, input stalls, checkpoint
    pauses and lost provenance all look like one slow node. A volume is identified by its device, not by its mount
    point: a bind mount of a root directory has its own mount point and the root's disk.
    """
    findings = stack.check_storage(storage, disks)
    if field:
        finding_on(findings, field, *words)
    else:
        assert_no_findings(findings)


ILLEGIBLE = {
    "empty": "",
    "cut-in-a-line": HOST.mountinfo[: len(ROOT) + 20],
    "without-a-root": f"{DATA}\n{SCRATCH}\n",
    "another-file": "/dev/nvme1n1 /mnt/data xfs rw,relatime 0 0\n/dev/nvme0n1p2 / ext4 rw 0 0\n",
    "a-message": "cat: /proc/self/mountinfo: Permission denied\n",
    "one-line-that-is-none": HOST.mountinfo + "-- 259:5 /mnt/data --\n",
}


@contract("STOR-01a", asks="check_storage", cases=ILLEGIBLE, source="the law: garbage is a refusal, not a pass")
def an_illegible_mount_table_is_no_pass(stack: Installation, mountinfo: str) -> None:
    """A mount table that is empty, cut off, without a root entry or in another format is refused, because it proves
    nothing.
    """
    findings = stack.check_storage(WELL, replace(HOST, mountinfo=mountinfo))
    assert findings, f"nothing was found, expected a finding on the mount table {mountinfo[:60]!r}"


ROOTS: dict[str, Place] = {
    "itself": (WELL, HOST, "", ()),
    "friendly-link": (replace(WELL, data="/home/op/data"), HOST, "", ()),
    "below-a-link": (replace(WELL, data="/home/op/data/parquet"), HOST, "", ()),
    "two-links-one-relative": (replace(WELL, data="/home/op/first"), HOST, "", ()),
    "up-from-a-link": (replace(WELL, data="/home/op/nanochat/../data"), HOST, "", ()),  # not /home/op/data
    "bound-elsewhere": (replace(WELL, data="/srv/parquet"), HOST, "", ()),  # the same volume by its device
    "frozen-volume": (replace(WELL, data="/mnt/frozen/data", data_volume="/mnt/frozen"), HOST, "", ()),
    "in-the-home": (replace(WELL, data="/root/data"), HOST, "data", ("/root/data",)),
    "link-back-to-the-root": (replace(WELL, data="/mnt/data/home"), HOST, "data", ("/var/data",)),
    "up-to-the-root": (replace(WELL, data="/mnt/data/../../var/data"), HOST, "data", ("/var/data",)),
    "dangling": (replace(WELL, data="/home/op/gone"), HOST, "data", ("/mnt/data/removed",)),
    "in-a-circle": (replace(WELL, data="/home/op/round"), HOST, "data", ("/home/op/round",)),
    "neighbour-that-begins-alike": (replace(WELL, data="/mnt/database/data"), HOST, "data", ("/mnt/database",)),
    "other-volume-inside": (replace(WELL, data="/mnt/data/old/data"), HOST, "data", ("/mnt/data/old",)),
    "volume-not-mounted": (WELL, UNMOUNTED, "data", ("/mnt/data",)),
    "volume-is-the-root": (
        replace(WELL, data="/mnt/bulk", data_volume="/mnt/bulk"),
        replace(HOST, directories=HOST.directories | {"/mnt/bulk"}), "data", ("/mnt/bulk", "root"),
    ),
}  # fmt: skip


@contract("STOR-02", asks="check_storage", cases=ROOTS, source="playbook: the invariant that should not drift; bringup")
def the_data_root_is_the_intended_volume(
    stack: Installation, storage: StorageMap, disks: Disks, field: str, words: tuple[str, ...]
) -> None:
    """The data root, with every link followed as the kernel follows it, exists and lies on the volume mounted at the
    intended point. Otherwise it is refused, and the refusal names the place that it leads to.

    "The training data root must point at the intended data volume, not at an incidental home-directory path." Friendly
    links are part of the layout (~/data → /mnt/data/data), so a link is no fault; its target decides. A disk that was
    not mounted leaves a directory of the same name on the root volume.
    """
    state_scratch_and_receipts_are_three_places(stack, storage, disks, field, words)


INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
RUNS = {
    "two-days": (WELL, "nam56r-0417", "nam56r-0418"),
    "one-begins-the-other": (WELL, "run-1", "run-10"),
    "letters-and-signs": (replace(WELL, scratch="/mnt/data/scratch"), "nam52.dp_2", "nam52-dp_2"),
    "upper-and-lower": (WELL, "NAM56R", "nam56r"),
}


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(above + "/")


@contract("STOR-03", asks="cache_env", cases=RUNS, source="playbook; naming")
def each_run_has_its_own_caches(stack: Installation, storage: StorageMap, run: str, other: str) -> None:
    """A run sets Inductor's and Triton's cache variables to directories of scratch that carry the run's name, off the
    checkpoint and data paths. No two runs share one.

    Without the variables the caches go to /tmp and the home directory. "Compile caches create lots of small-file and
    metadata churn"; on the data or checkpoint path this looks like a stalled loader. With a shared cache, the second
    run's compile time depends on the first run.
    """
    mine, theirs = stack.cache_env(storage, run), stack.cache_env(storage, other)
    for name in (INDUCTOR, TRITON):
        assert name in mine, f"{name} is not set for {run}"
        path = mine[name]
        assert _below(path, storage.scratch), f"{name} is {path}, which is not in scratch {storage.scratch}"
        assert run in path[len(storage.scratch) :].split("/"), f"{name} is {path}, in which no directory is named {run}"
        for place in (storage.durable, storage.data):
            assert not _below(path, place), f"{name} is {path}, which lies in {place}"
        for shared in theirs.values():
            nested = _below(path, shared) or _below(shared, path)
            assert not nested, f"{name} is {path} for {run}, and {other} has {shared}"


ESCAPES = {"empty": "", "here": ".", "up": "..", "to-the-checkpoints": "../data/checkpoints", "absolute": "/mnt/data",
           "up-and-down": "a/../../data/data", "line-break": "run\n1"}  # fmt: skip


@contract("STOR-03a", asks="cache_env", cases=ESCAPES, source="the law: caches stay in scratch")
def a_run_name_leads_nowhere_else(stack: Installation, run: str) -> None:
    """A run name is refused when it is not a valid directory name or leads out of scratch. It is not cleaned up
    silently, because cleaning would give two runs one cache.
    """
    refused = refusal_of(stack.cache_env, WELL, run)
    assert refused.fields == ("run",), f"the refusal names {', '.join(refused.fields)}, expected run"


OWN = {INDUCTOR: "/mnt/scratch/run-1/inductor", TRITON: "/mnt/scratch/run-1/triton"}
CACHES: dict[str, tuple[str, dict[str, str], str, tuple[str, ...]]] = {  # run, environment, variable, words
    "own": ("run-1", OWN, "", ()),
    "own-by-rank": ("run-1", {INDUCTOR: "/mnt/scratch/caches/run-1/rank3/i", TRITON: "/mnt/scratch/run-1/3"}, "", ()),
    "triton-left-alone": ("run-1", {INDUCTOR: OWN[INDUCTOR]}, TRITON, (TRITON,)),
    "nothing-set": ("run-1", {}, INDUCTOR, (INDUCTOR,)),
    "set-to-nothing": ("run-1", {**OWN, TRITON: ""}, TRITON, (TRITON,)),
    "home": ("run-1", {**OWN, TRITON: "/root/.triton/cache"}, TRITON, ("/root/.triton/cache",)),
    "relative": ("run-1", {**OWN, TRITON: ".triton/run-1"}, TRITON, (".triton/run-1",)),
    "in-the-checkpoints": (
        "run-1", {**OWN, INDUCTOR: "/mnt/data/checkpoints/run-1/cache"}, INDUCTOR, ("/mnt/data/checkpoints",),
    ),
    "in-the-data": ("run-1", {**OWN, TRITON: "/mnt/data/data/run-1"}, TRITON, ("/mnt/data/data/run-1",)),
    "everybodys": ("run-1", {**OWN, INDUCTOR: "/mnt/scratch/inductor"}, INDUCTOR, ("run-1", "/mnt/scratch/inductor")),
    "of-another-run": ("run-1", {**OWN, TRITON: "/mnt/scratch/run-10/triton"}, TRITON, ("/mnt/scratch/run-10",)),
    "link-out-of-scratch": (
        "run-7", {INDUCTOR: "/mnt/scratch/run-7/i", TRITON: "/mnt/scratch/caches/run-7"}, INDUCTOR, ("/root/.cache",),
    ),
}  # fmt: skip


@contract("STOR-03b", asks="check_caches", cases=CACHES, source="playbook; naming")
def caches_that_lie_elsewhere_are_refused(
    stack: Installation, run: str, env: dict[str, str], variable: str, words: tuple[str, ...]
) -> None:
    """In the environment that reaches the ranks, an Inductor or Triton cache variable is refused by name when it is
    unset, lies outside the run's own directory in scratch, or leads out of it through a link.

    Inductor moves Triton's cache below its own only for the kernels that it generates. A hand-written kernel that is
    compiled first uses the home directory.
    """
    findings = stack.check_caches(WELL, HOST, run, env)
    if variable:
        finding_on(findings, variable, *words)
    else:
        assert_no_findings(findings)

"""Storage checks that misread the disks: by text, by mount point, by the name of a link."""

import posixpath
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import storage as volumes
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference


def _but(findings, *words):
    """The findings of a checker that leaves some of them out."""
    return tuple(each for each in findings if not any(word in each.problem for word in words))


@broken(
    Reference,
    "check_storage",
    "STOR-01[checkpoints-in-the-home]: nothing was found, expected a finding on durable",
    bugs=("PRV-16",),
)
def any_disk_will_do(check_storage, self, storage, disks):
    """Only asks whether the directory exists and is writable, which the home directory of a fresh host is."""
    return _but(check_storage(self, storage, disks), "root volume")


@broken(
    Reference,
    "check_storage",
    "STOR-01[root-bound-elsewhere]: nothing was found, expected a finding on durable",
    bugs=("PRV-16",),
)
def tells_volumes_by_mount_point(check_storage, self, storage, disks):
    """Takes any mount point but / for another volume: a bind mount of a root directory passes."""
    points = disks.mountinfo.replace("259:2 /srv/bulk /mnt/bulk", "259:3 / /mnt/bulk")
    return check_storage(self, storage, replace(disks, mountinfo=points))


@broken(
    Reference,
    "check_storage",
    "STOR-01[volume-not-mounted]: nothing was found, expected a finding on durable",
    bugs=("PRV-16",),
)
def trusts_the_directory(check_storage, self, storage, disks):
    """Takes the directory /mnt/data for a mounted disk, without a look at the mount table."""
    found = check_storage(self, storage, disks)
    return tuple(each for each in found if not each.value.startswith("/mnt/data"))


@broken(Reference, "check_storage", "STOR-01[volume-hidden]: nothing was found, expected a finding on durable")
def takes_the_longest_point(check_storage, self, storage, disks):
    """Takes the mount with the longest matching mount point, also when a later mount covers it."""
    lines = [line for line in disks.mountinfo.splitlines() if line.split()[4] != "/mnt"]
    return check_storage(self, storage, replace(disks, mountinfo="\n".join(lines)))


@broken(
    Reference,
    "check_storage",
    "STOR-01[volume-covered-by-memory]: nothing was found, expected a finding on durable",
    "STOR-01[memory-covered-by-a-volume]: found where all is well: STOR-01 durable",
)
def takes_the_first_mount_of_a_point(check_storage, self, storage, disks):
    """Looks a mount point up once: a disk that was mounted over it afterwards is not seen, nor memory."""
    seen, lines = set(), []
    for line in disks.mountinfo.splitlines():
        point = line.split()[4]
        lines += [] if point in seen else [line]
        seen.add(point)
    return check_storage(self, storage, replace(disks, mountinfo="\n".join(lines)))


@broken(
    Reference,
    "check_storage",
    "STOR-01[one-directory-for-two]: nothing was found, expected a finding on durable or scratch",
    bugs=("PRV-17",),
)
def one_tree_for_all(check_storage, self, storage, disks):
    """Accepts one output directory for everything: the metadata storm of a compile looks like a checkpoint pause."""
    return _but(check_storage(self, storage, disks), " is scratch", " is durable", "lies in")


@broken(
    Reference,
    "check_storage",
    "STOR-01[receipts-in-scratch]: nothing was found, expected a finding on receipts or scratch",
    bugs=("PRV-18", "PRV-17"),
)
def compares_for_equality(check_storage, self, storage, disks):
    """Takes three different strings for three places: receipts inside scratch are lost when scratch is emptied."""
    return _but(check_storage(self, storage, disks), "lies in scratch")


@broken(
    Reference,
    "check_storage",
    "STOR-01[one-place-under-two-names]: nothing was found, expected a finding on durable or scratch",
    bugs=("PRV-17",),
)
def compares_unresolved_paths(check_storage, self, storage, disks):
    """Compares paths as configured, although a link makes two of them one."""
    found = check_storage(self, storage, disks)
    return found if storage.scratch == storage.durable else _but(found, " is scratch", " is durable")


@broken(Reference, "check_storage", "STOR-01[checkpoints-in-memory]: nothing was found, expected a finding on durable")
def fast_is_durable(check_storage, self, storage, disks):
    """Accepts checkpoints in /dev/shm because it is not the root volume; they are lost with the host."""
    return _but(check_storage(self, storage, disks), "in memory")


@broken(Reference, "check_storage", "STOR-01[scratch-in-memory]: found where all is well: STOR-01 scratch")
def nothing_in_memory(check_storage, self, storage, disks):
    """Over-correction: refuses scratch in memory, where nothing needs to last."""
    found = check_storage(self, replace(storage, durable=storage.scratch), disks)
    return tuple(replace(each, field="scratch") for each in found if "in memory" in each.problem)


@broken(Reference, "check_storage", "STOR-01[one-volume-three-directories]: found where all is well: STOR-01 scratch")
def three_places_are_three_disks(check_storage, self, storage, disks):
    """Over-correction: wants three disks, and refuses every launch on a host with one data volume."""
    found = check_storage(self, storage, disks)
    if not storage.scratch.startswith("/mnt/data/"):
        return found
    return (*found, Finding(promise="STOR-01", field="scratch", value=storage.scratch, problem="shares the volume",
                            remedy="buy a disk"))  # fmt: skip


@broken(Reference, "check_storage", "STOR-01[blank-in-the-name]: found where all is well: STOR-01 durable")
def reads_escapes_as_they_stand(check_storage, self, storage, disks):
    """Leaves the kernel's \\040 for a blank undecoded: no path is below that mount, so it seems to be on the root
    volume.
    """
    return check_storage(self, storage, replace(disks, mountinfo=disks.mountinfo.replace("\\040", "\\134040")))


@broken(
    Reference,
    "check_storage",
    "STOR-01a[one-line-that-is-none]: nothing was found, expected a finding on the mount table",
)
def skips_what_it_cannot_read(check_storage, self, storage, disks):
    """Skips a line that does not match, as most scripts do, although it may be the mount that matters."""
    lines = [line for line in disks.mountinfo.splitlines() if line.count(" ") >= 8]
    return check_storage(self, storage, replace(disks, mountinfo="\n".join(lines)))


@broken(Reference, "check_storage", "STOR-01a[empty]: nothing was found, expected a finding on the mount table")
def no_mounts_no_fault(check_storage, self, storage, disks):
    """Takes a missing mount table, as in some containers, for proof that nothing is on the root volume."""
    return check_storage(self, storage, disks) if disks.mountinfo else ()


@broken(
    Reference,
    "check_storage",
    "STOR-02[link-back-to-the-root]: nothing was found, expected a finding on data",
    bugs=("PRV-16",),
)
def stops_at_the_name(check_storage, self, storage, disks):
    """Sees that /mnt/data/home begins with /mnt/data and does not follow the link in it back to the root volume."""
    there = disks.directories | {storage.data}
    kept = {link: to for link, to in disks.links.items() if link != storage.data}
    return check_storage(self, storage, replace(disks, links=kept, directories=there))


@broken(Reference, "check_storage", "STOR-02[friendly-link]: found where all is well: STOR-02 data")
def no_links(check_storage, self, storage, disks):
    """Over-correction: refuses every link, and with it the layout that operators use."""
    return check_storage(self, storage, replace(disks, links={}))


@broken(Reference, "check_storage", "STOR-02[up-from-a-link]: found where all is well: STOR-02 data")
def normalises_first(check_storage, self, storage, disks):
    """Removes `..` as text before it follows links; the kernel goes up from where the link led."""
    without = {link: to for link, to in disks.links.items() if link != "/home/op/data"}
    normal = replace(storage, data=posixpath.normpath(storage.data))
    return check_storage(self, normal, replace(disks, links=without))


@broken(Reference, "check_storage", "STOR-02[dangling]: nothing was found, expected a finding on data")
def never_looks_there(check_storage, self, storage, disks):
    """Accepts a link into the data volume whose target does not exist, until the loader starts."""
    return _but(check_storage(self, storage, disks), "does not exist")


@broken(
    Reference, "check_storage", "STOR-02[neighbour-that-begins-alike]: nothing was found, expected a finding on data"
)
def compares_paths_as_text(check_storage, self, storage, disks):
    """Calls `path.startswith("/mnt/data")`, which is true of /mnt/database."""
    found = check_storage(self, storage, disks)
    return found if not storage.data.startswith(storage.data_volume) else _but(found, "intended is")


@broken(Reference, "check_storage", "STOR-02[bound-elsewhere]: found where all is well: STOR-02 data")
def wants_the_mount_point(check_storage, self, storage, disks):
    """Over-correction: refuses the same volume under another mount point."""
    other = disks.mountinfo.replace("259:5 /data /srv/parquet", "259:77 / /srv/parquet")
    return check_storage(self, storage, replace(disks, mountinfo=other))


@broken(Reference, "cache_env", "STOR-03[two-days]: TRITON_CACHE_DIR is not set for nam56r-0417")
def sets_inductors_only(cache_env, self, storage, run):
    """Relies on inductor to move Triton's cache below its own, although hand-written kernels compile before that."""
    return {k: v for k, v in cache_env(self, storage, run).items() if "INDUCTOR" in k}


@broken(Reference, "cache_env", "STOR-03[one-begins-the-other]: in which no directory is named run-1")
def one_cache_for_all(cache_env, self, storage, run):
    """Gives every run one warm cache: the second run's compile time depends on the first run."""
    return cache_env(self, storage, "shared")


@broken(Reference, "cache_env", "STOR-03[two-days]: which is not in scratch /mnt/scratch", bugs=("PRV-17",))
def caches_beside_the_checkpoints(cache_env, self, storage, run):
    """Puts the caches into the run's output directory: small files on the path of checkpoint bursts."""
    return cache_env(self, replace(storage, scratch=storage.durable), run)


@broken(Reference, "cache_env", "STOR-03[upper-and-lower]: in which no directory is named NAM56R")
def lowers_the_name(cache_env, self, storage, run):
    """Lowers the case of the run's name, so that two runs get one directory."""
    return cache_env(self, storage, run.lower())


@broken(Reference, "cache_env", "STOR-03a[to-the-checkpoints]: was accepted, expected a refusal")
def joins_what_it_is_given(cache_env, self, storage, run):
    """Joins scratch and the run's name unchecked; the name leads to the checkpoints."""
    return {variable: f"{storage.scratch}/{run}/{leaf}" for variable, leaf in volumes.CACHES.items()}


@broken(Reference, "cache_env", "STOR-03a[line-break]: was accepted, expected a refusal")
def cleans_in_silence(cache_env, self, storage, run):
    """Replaces characters that a directory name cannot hold; two runs become one."""
    return cache_env(self, storage, "".join(c if c.isalnum() or c in "-._" else "_" for c in run))


@broken(
    Reference,
    "check_caches",
    "STOR-03b[triton-left-alone]: nothing was found, expected a finding on TRITON_CACHE_DIR",
    bugs=("PRV-16",),
)
def unset_is_no_path(check_caches, self, storage, disks, run, env):
    """Checks only the variables that are set; an unset one sends the cache to the home directory."""
    return tuple(each for each in check_caches(self, storage, disks, run, env) if each.field in env)


@broken(
    Reference, "check_caches", "STOR-03b[of-another-run]: nothing was found, expected a finding on TRITON_CACHE_DIR"
)
def searches_for_the_name(check_caches, self, storage, disks, run, env):
    """Tests `run in path`, but run-10 contains run-1."""
    found = check_caches(self, storage, disks, run, env)
    return tuple(each for each in found if not (run in each.value and "own" in each.problem))


@broken(
    Reference,
    "check_caches",
    "STOR-03b[link-out-of-scratch]: expected a finding on TORCHINDUCTOR_CACHE_DIR",
    bugs=("PRV-16",),
)
def does_not_follow_the_link(check_caches, self, storage, disks, run, env):
    """Does not notice that the run's directory is a link to the home directory, made when scratch was full."""
    return check_caches(self, storage, replace(disks, links={}), run, env)


@broken(Reference, "check_caches", "STOR-03b[own-by-rank]: found where all is well: STOR-03 TORCHINDUCTOR_CACHE_DIR")
def knows_its_own_layout(check_caches, self, storage, disks, run, env):
    """Over-correction: accepts only the directory that it would have chosen itself."""
    chosen = self.cache_env(storage, run)
    wrong = {name: path if path == chosen.get(name) else "/elsewhere" for name, path in env.items()}
    return check_caches(self, storage, disks, run, wrong)

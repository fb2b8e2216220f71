"""Storage checks that misread the disks: by text, by mount point, by the name of a link."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec import storage as volumes
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.machine import Finding
from contracts.stacks.reference.stack import Reference

Findings = tuple[Finding, ...]


def _but(findings: Findings, *words: str) -> Findings:
    """The findings of a checker that leaves some of them out."""
    return tuple(each for each in findings if not any(word in each.problem for word in words))


@mutant(of="STOR-01", case="checkpoints-in-the-home", says="nothing was found, expected a finding on durable",
        bugs=("PRV-16",))  # fmt: skip
class AnyDiskWillDo(Reference):
    """Only asks whether the directory exists and is writable, which the home directory of a fresh host is."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return _but(super().check_storage(storage, disks), "root volume")


@mutant(
    of="STOR-01", case="root-bound-elsewhere", says="nothing was found, expected a finding on durable", bugs=("PRV-16",)
)
class TellsVolumesByMountPoint(Reference):
    """Takes any mount point but / for another volume: a bind mount of a root directory passes."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        points = disks.mountinfo.replace("259:2 /srv/bulk /mnt/bulk", "259:3 / /mnt/bulk")
        return super().check_storage(storage, replace(disks, mountinfo=points))


@mutant(
    of="STOR-01", case="volume-not-mounted", says="nothing was found, expected a finding on durable", bugs=("PRV-16",)
)
class TrustsTheDirectory(Reference):
    """Takes the directory /mnt/data for a mounted disk, without a look at the mount table."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        found = super().check_storage(storage, disks)
        return tuple(each for each in found if not each.value.startswith("/mnt/data"))


@mutant(of="STOR-01", case="volume-hidden", says="nothing was found, expected a finding on durable")
class TakesTheLongestPoint(Reference):
    """Takes the mount with the longest matching mount point, also when a later mount covers it."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        lines = [line for line in disks.mountinfo.splitlines() if line.split()[4] != "/mnt"]
        return super().check_storage(storage, replace(disks, mountinfo="\n".join(lines)))


@mutant(of="STOR-01", case="one-directory-for-two", says="nothing was found, expected a finding on durable or scratch",
        bugs=("PRV-17",))  # fmt: skip
class OneTreeForAll(Reference):
    """Accepts one output directory for everything: the metadata storm of a compile looks like a checkpoint pause."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return _but(super().check_storage(storage, disks), " is scratch", " is durable", "lies in")


@mutant(of="STOR-01", case="receipts-in-scratch", says="nothing was found, expected a finding on receipts or scratch",
        bugs=("PRV-18", "PRV-17"))  # fmt: skip
class ComparesForEquality(Reference):
    """Takes three different strings for three places: receipts inside scratch are lost when scratch is emptied."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return _but(super().check_storage(storage, disks), "lies in scratch")


@mutant(of="STOR-01", case="one-place-under-two-names",
        says="nothing was found, expected a finding on durable or scratch", bugs=("PRV-17",))  # fmt: skip
class ComparesUnresolvedPaths(Reference):
    """Compares paths as configured, although a link makes two of them one."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        found = super().check_storage(storage, disks)
        return found if storage.scratch == storage.durable else _but(found, " is scratch", " is durable")


@mutant(of="STOR-01", case="checkpoints-in-memory", says="nothing was found, expected a finding on durable")
class FastIsDurable(Reference):
    """Accepts checkpoints in /dev/shm because it is not the root volume; they are lost with the host."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return _but(super().check_storage(storage, disks), "in memory")


@mutant(of="STOR-01", case="scratch-in-memory", says="found where all is well: STOR-01 scratch")
class NothingInMemory(Reference):
    """Over-correction: refuses scratch in memory, where nothing needs to last."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        found = super().check_storage(replace(storage, durable=storage.scratch), disks)
        return tuple(replace(each, field="scratch") for each in found if "in memory" in each.problem)


@mutant(of="STOR-01", case="one-volume-three-directories", says="found where all is well: STOR-01 scratch")
class ThreePlacesAreThreeDisks(Reference):
    """Over-correction: wants three disks, and refuses every launch on a host with one data volume."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        found = super().check_storage(storage, disks)
        if not storage.scratch.startswith("/mnt/data/"):
            return found
        return (*found, Finding(promise="STOR-01", field="scratch", value=storage.scratch, problem="shares the volume",
                                remedy="buy a disk"))  # fmt: skip


@mutant(of="STOR-01", case="blank-in-the-name", says="found where all is well: STOR-01 durable")
class ReadsEscapesAsTheyStand(Reference):
    """Leaves the kernel's \\040 for a blank undecoded: no path is below that mount, so it seems to be on the root
    volume.
    """

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return super().check_storage(storage, replace(disks, mountinfo=disks.mountinfo.replace("\\040", "\\134040")))


@mutant(of="STOR-01a", case="one-line-that-is-none", says="nothing was found, expected a finding on the mount table")
class SkipsWhatItCannotRead(Reference):
    """Skips a line that does not match, as most scripts do, although it may be the mount that matters."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        lines = [line for line in disks.mountinfo.splitlines() if line.count(" ") >= 8]
        return super().check_storage(storage, replace(disks, mountinfo="\n".join(lines)))


@mutant(of="STOR-01a", case="empty", says="nothing was found, expected a finding on the mount table")
class NoMountsNoFault(Reference):
    """Takes a missing mount table, as in some containers, for proof that nothing is on the root volume."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return super().check_storage(storage, disks) if disks.mountinfo else ()


@mutant(
    of="STOR-02", case="link-back-to-the-root", says="nothing was found, expected a finding on data", bugs=("PRV-16",)
)
class StopsAtTheName(Reference):
    """Sees that /mnt/data/home begins with /mnt/data and does not follow the link in it back to the root volume."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        there = disks.directories | {storage.data}
        kept = {link: to for link, to in disks.links.items() if link != storage.data}
        return super().check_storage(storage, replace(disks, links=kept, directories=there))


@mutant(of="STOR-02", case="friendly-link", says="found where all is well: STOR-02 data")
class NoLinks(Reference):
    """Over-correction: refuses every link, and with it the layout that operators use."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return super().check_storage(storage, replace(disks, links={}))


@mutant(of="STOR-02", case="up-from-a-link", says="found where all is well: STOR-02 data")
class NormalisesFirst(Reference):
    """Removes `..` as text before it follows links; the kernel goes up from where the link led."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        without = {link: to for link, to in disks.links.items() if link != "/home/op/data"}
        normal = replace(storage, data=posixpath.normpath(storage.data))
        return super().check_storage(normal, replace(disks, links=without))


@mutant(of="STOR-02", case="dangling", says="nothing was found, expected a finding on data")
class NeverLooksThere(Reference):
    """Accepts a link into the data volume whose target does not exist, until the loader starts."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        return _but(super().check_storage(storage, disks), "does not exist")


@mutant(of="STOR-02", case="neighbour-that-begins-alike", says="nothing was found, expected a finding on data")
class ComparesPathsAsText(Reference):
    """Calls `path.startswith("/mnt/data")`, which is true of /mnt/database."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        found = super().check_storage(storage, disks)
        return found if not storage.data.startswith(storage.data_volume) else _but(found, "intended is")


@mutant(of="STOR-02", case="bound-elsewhere", says="found where all is well: STOR-02 data")
class WantsTheMountPoint(Reference):
    """Over-correction: refuses the same volume under another mount point."""

    def check_storage(self, storage: StorageMap, disks: Disks) -> Findings:
        other = disks.mountinfo.replace("259:5 /data /srv/parquet", "259:77 / /srv/parquet")
        return super().check_storage(storage, replace(disks, mountinfo=other))


@mutant(of="STOR-03", case="two-days", says="TRITON_CACHE_DIR is not set for nam56r-0417")
class SetsInductorsOnly(Reference):
    """Relies on inductor to move Triton's cache below its own, although hand-written kernels compile before that."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return {k: v for k, v in super().cache_env(storage, run).items() if "INDUCTOR" in k}


@mutant(of="STOR-03", case="one-begins-the-other", says="in which no directory is named run-1")
class OneCacheForAll(Reference):
    """Gives every run one warm cache: the second run's compile time depends on the first run."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return super().cache_env(storage, "shared")


@mutant(of="STOR-03", case="two-days", says="which is not in scratch /mnt/scratch", bugs=("PRV-17",))
class CachesBesideTheCheckpoints(Reference):
    """Puts the caches into the run's output directory: small files on the path of checkpoint bursts."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return super().cache_env(replace(storage, scratch=storage.durable), run)


@mutant(of="STOR-03", case="upper-and-lower", says="in which no directory is named NAM56R")
class LowersTheName(Reference):
    """Lowers the case of the run's name, so that two runs get one directory."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return super().cache_env(storage, run.lower())


@mutant(of="STOR-03a", case="to-the-checkpoints", says="was accepted, expected a refusal")
class JoinsWhatItIsGiven(Reference):
    """Joins scratch and the run's name unchecked; the name leads to the checkpoints."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return {variable: f"{storage.scratch}/{run}/{leaf}" for variable, leaf in volumes.CACHES.items()}


@mutant(of="STOR-03a", case="line-break", says="was accepted, expected a refusal")
class CleansInSilence(Reference):
    """Replaces characters that a directory name cannot hold; two runs become one."""

    def cache_env(self, storage: StorageMap, run: str) -> Mapping[str, str]:
        return super().cache_env(storage, "".join(c if c.isalnum() or c in "-._" else "_" for c in run))


@mutant(of="STOR-03b", case="triton-left-alone", says="nothing was found, expected a finding on TRITON_CACHE_DIR",
        bugs=("PRV-16",))  # fmt: skip
class UnsetIsNoPath(Reference):
    """Checks only the variables that are set; an unset one sends the cache to the home directory."""

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> Findings:
        return tuple(each for each in super().check_caches(storage, disks, run, env) if each.field in env)


@mutant(of="STOR-03b", case="of-another-run", says="nothing was found, expected a finding on TRITON_CACHE_DIR")
class SearchesForTheName(Reference):
    """Tests `run in path`, but run-10 contains run-1."""

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> Findings:
        found = super().check_caches(storage, disks, run, env)
        return tuple(each for each in found if not (run in each.value and "own" in each.problem))


@mutant(
    of="STOR-03b", case="link-out-of-scratch", says="expected a finding on TORCHINDUCTOR_CACHE_DIR", bugs=("PRV-16",)
)
class DoesNotFollowTheLink(Reference):
    """Does not notice that the run's directory is a link to the home directory, made when scratch was full."""

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> Findings:
        return super().check_caches(storage, replace(disks, links={}), run, env)


@mutant(of="STOR-03b", case="own-by-rank", says="found where all is well: STOR-03 TORCHINDUCTOR_CACHE_DIR")
class KnowsItsOwnLayout(Reference):
    """Over-correction: accepts only the directory that it would have chosen itself."""

    def check_caches(self, storage: StorageMap, disks: Disks, run: str, env: Mapping[str, str]) -> Findings:
        chosen = self.cache_env(storage, run)
        wrong = {name: path if path == chosen.get(name) else "/elsewhere" for name, path in env.items()}
        return super().check_caches(storage, disks, run, wrong)

"""Ranks that each choose by themselves what to load."""

from contracts.law._bugs.numeric import GENERATORS, Checkpoints, ParallelTrainer, ShardReader, broken, derived
from contracts.law._bugs.numeric import manifest as manifests


@broken(
    Checkpoints,
    "opened",
    "CKPT-02d[rank-1-is-late]: resumed after steps [2, 1]",
    "CKPT-02d[each-has-its-own]: loaded 2, not a refusal",
)
def each_loads_its_latest(opened, self, step=None):
    """Every rank looks for the newest step by itself."""
    chosen = self.latest() if step is None else step
    return manifests.read(self.folder / self.name_of(chosen or 0))


@derived("CKPT-02d[rank-1-sees-nothing]: resumed after steps [2, 0]")
class BeginsWhereNothingIs(ParallelTrainer):
    """A rank that finds no checkpoint takes this for a first start."""

    def kept(self, folder: str) -> Checkpoints:
        return self.parts.checkpoints(folder, alone=self.loads, of_ranks=(GENERATORS,))

    loads = False

    def resume(self, folder: str) -> None:
        self.loads = True
        if self.kept(folder).latest() is not None:
            super().resume(folder)
        self.loads = False


@broken(
    ShardReader,
    "fault_of",
    "CKPT-02e[the-last-file]: a file is damaged, and ranks resumed after steps [2, 2]",
    bugs=("RSM-33",),
)
def trusts_the_shards(fault_of, self, name, content):
    """A readable manifest is taken as enough, because a rank that finds damage could only hang the others."""
    return ""

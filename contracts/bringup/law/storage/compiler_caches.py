"""The folders in which a compiled step leaves files, on every rank."""

import os
from pathlib import Path
from typing import Protocol

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.attention_calls import call_of
from contracts.law._support.saved_states import shared_folder
from contracts.law._support.training_run import DENSE
from contracts.spec import Blocks, Compiling
from contracts.spec.installation import Installation, StorageMap

RUN, E_LAYER, LENGTHS = "nam56r-0417", 2, ((6,), (6,))
INHERITED = ("PATH", "LD_LIBRARY_PATH", "CXX", "CUDA_HOME")  # what a compiler needs to be found
OWN = {"HOME": "home", "TMPDIR": "tmp"}
"""Variable → the folder of this rank that it names. A rank's working directory is a third folder, `work`."""


class CompilesForARun(Installation, Blocks, Compiling, Protocol):
    """A stack that answers these three groups of questions."""


@contract("STOR-03c", asks=("cache_env", "block_weights", "compile_under"), cases={"two-ranks": (2,)},
          source="playbook; naming", tier="dist", slow=True)  # fmt: skip
def a_compiled_step_leaves_its_files_in_the_scratch_of_its_run(stack: CompilesForARun, world: int) -> None:
    """On every rank, the files that a compiled step leaves lie in the run's own scratch and nowhere else: not in the
    home directory, TMPDIR or the working directory, not beside checkpoints or data, and not in another run's scratch.

    Inductor compiles a block from cold, forward and backward, in a process whose environment holds what `cache_env`
    returns. Inductor keeps precompiled headers of 150 MB below TMPDIR, wherever its cache was sent: on a node, TMPDIR
    is on the root volume, and every user writes them once. The check does not see files at a path that no variable
    names, nor files that are gone when the step has ended.
    """
    with shared_folder() as at:
        storage, mine = _places(at)
        for folder in (*mine.values(), *map(Path, (storage.scratch, storage.durable, storage.data))):
            folder.mkdir(parents=True, exist_ok=True)
        own = {name: str(mine[folder]) for name, folder in OWN.items()}
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment = inherited | {"OMP_NUM_THREADS": "1"} | own | dict(stack.cache_env(storage, RUN))
        call = call_of(stack, DENSE, LENGTHS, layer=E_LAYER, dtype="float32")
        outcome = stack.compile_under(call, environment, str(mine["work"]))
        gathered("compiled")  # no rank looks before all have written
        inside = _files(Path(storage.scratch, RUN))
        shared = {"scratch of another run": _files(Path(storage.scratch)) - inside}
        shared |= {name: _files(Path(getattr(storage, name))) for name in ("durable", "data")}
        left = {name: _files(folder) for name, folder in mine.items()} | shared
        gathered("looked")
    assert outcome.worked, f"rank {here().rank} compiles nothing under its run's environment: {outcome.words}"
    assert inside, f"rank {here().rank} compiled, and nothing is in the scratch folder of {RUN}"
    elsewhere = {name: sorted(files) for name, files in left.items() if files}
    listed = "; ".join(f"{len(files)} files in {name}, such as {files[0]}" for name, files in elsewhere.items())
    assert not elsewhere, f"rank {here().rank} left {listed}"


def _places(at: Path) -> tuple[StorageMap, dict[str, Path]]:
    """A storage map below a folder, and this rank's own folders."""
    storage = StorageMap(
        durable=f"{at}/durable", scratch=f"{at}/scratch", receipts=f"{at}/receipts", data=f"{at}/data",
        data_volume=str(at),
    )  # fmt: skip
    return storage, {name: at / f"rank{here().rank}" / name for name in (*OWN.values(), "work")}


def _files(folder: Path) -> set[str]:
    """Paths of the files below a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}

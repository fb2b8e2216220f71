"""Where the ranks of a running job put their shards: all below the named folder, and nowhere else."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.contract import contract
from contracts.instruments.ranks import gathered, here
from contracts.law._support.folders import shared_folder
from contracts.law._support.multi_rank_saves import EP2, FSDP2, SPREAD, STATE, first_finding, state_difference
from contracts.law._support.saved_states import files
from contracts.spec import Execution, Session, Training


@contract("CKPT-07c", asks="train", cases={"fsdp2": (FSDP2, 2), "ep2": (EP2, 2)}, source="playbook: storage contract",
          tier="dist")  # fmt: skip
def every_shard_lies_on_the_durable_volume(stack: Training, execution: Execution, world: int) -> None:
    """The ranks of a running job write their checkpoints below the named folder on the durable volume, and write no
    file to a node's own disk. The folder holds the whole checkpoint, wherever the volume is mounted next.

    A shard on a node's own disk is found only as long as the job gets the same nodes.
    """
    with shared_folder() as at:
        durable, local = at / "durable", at / f"node-{here().rank}"
        durable.mkdir(exist_ok=True)
        local.mkdir()
        with _on_a_node(local):
            session = Session(recipe=SPREAD, steps=1, execution=execution, observe=STATE, save=str(durable),
                              save_at=frozenset({1}))  # fmt: skip
            saved = stack.train(session).steps[-1]
        left = sorted(str(path.relative_to(local)) for path in files(local))
        words = first_finding(f"{len(left)} files are on its own disk, such as {left[0]}" if left else "")
        assert not words, f"the run saves to the durable volume, but {words}"
        if gathered("saved") and here().rank == 0:
            durable.rename(at / "mounted-elsewhere")
        gathered("moved")
        again = Session(recipe=SPREAD, steps=0, execution=execution, observe=STATE, at=frozenset({0}),
                        load=str(at / "mounted-elsewhere"))  # fmt: skip
        loaded = stack.train(again).loaded
        assert loaded is not None, "no loaded state is reported"
        words = first_finding(state_difference(loaded, saved))
        assert not words, f"mounted elsewhere, the checkpoint gives another state: {words}"


@contextmanager
def _on_a_node(local: Path) -> Iterator[None]:
    """Put this rank's working directory and temporary files on a disk of its own."""
    before, temporary = Path.cwd(), tempfile.tempdir
    os.chdir(local)
    tempfile.tempdir = str(local)
    try:
        yield
    finally:
        os.chdir(before)
        tempfile.tempdir = temporary

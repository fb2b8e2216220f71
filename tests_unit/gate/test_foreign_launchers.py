"""Inside a job of another launcher the gate neither waits for other ranks nor starts its own otherwise."""

import sys
import time
from pathlib import Path

import pytest

from contracts.harness import torchrun
from contracts.spec.launchers import leave, names_rank, without
from tests_unit._parties.running import Done, environment, ran

JOB = {
    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29533",
}  # fmt: skip
OTHERS = {
    "pytorch-job": JOB,
    "rank-without-its-world": {"RANK": "1"},
    "world-without-a-rank": {"WORLD_SIZE": "8"},
    "slurm": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"},
    "mpi": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"},
    "elastic": {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "127.0.0.1:1", "TORCHELASTIC_RUN_ID": "other"},
}
LIMIT_S = 150.0  # seen: 5 s alone; a gate that waits for others takes 330 s and more
CHECK = ("-m", "rankproof", "check", "--with", "none", "--report", "out")


def judged(cwd: Path, *words: str, code: int, **variables: str) -> Done:
    command = [sys.executable, "-P", *CHECK, *words]
    return ran(command, code=code, limit_s=LIMIT_S, cwd=cwd, env=environment(**variables))


@pytest.mark.parametrize("launcher", OTHERS)
def test_variables_of_other_launchers_do_not_change_a_check_of_one_process(launcher: str, tmp_path: Path) -> None:
    assert "CONFORMANT: reference" in judged(tmp_path, "--profile", "PAT-01", **OTHERS[launcher], code=0).stdout


def options() -> dict[str, str]:
    """Every variable that torchrun's own parser reads, with a value that would change how it starts."""
    run = pytest.importorskip("torch.distributed.run")
    hostile = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "0", "PET_MASTER_PORT": "1"}
    actions = run.get_args_parser()._actions  # argparse has no public list
    read = [each for each in actions if type(each).__module__ == "torch.distributed.argparse_util"]
    assert len(read) > 15
    return {f"PET_{each.dest.upper()}": hostile.get(f"PET_{each.dest.upper()}", "1") for each in read}


def test_ranks_are_started_without_torchruns_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = pytest.importorskip("torch.distributed.elastic.agent.server.local_elastic_agent")
    source = Path(agent.__file__).read_text(encoding="utf-8")
    given = source.partition("worker_env = {")[2].partition("}\n")[0]
    names = {line.split('"')[1] for line in given.splitlines() if line.strip().startswith('"') and '":' in line}
    assert {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} <= names
    assert {name for name in names if not names_rank(name)} == {"TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    assert all(map(names_rank, options()))
    kept = {"RANKPROOF_RECORD_KEY_FILE": "k", "SLURM_JOB_ID": "77", "HOME": "/", "PETS": "2"}
    assert without({**options(), **JOB, **kept}) == kept
    held = {**JOB, **kept}
    leave(held)
    assert held == kept
    for name, value in {**options(), **JOB}.items():
        monkeypatch.setenv(name, value)
    assert not any(map(names_rank, torchrun.environment()))


@pytest.mark.torchrun
def test_check_starts_its_ranks_under_every_variable_of_other_launchers(tmp_path: Path) -> None:
    began = time.monotonic()
    every = {**options(), **{name: value for each in OTHERS.values() for name, value in each.items()}}
    judged(tmp_path, "--profile", "TOPO-05d[own-axis-tp2-on-2]", "--ranks", "2", **every, code=0)
    assert time.monotonic() - began < LIMIT_S

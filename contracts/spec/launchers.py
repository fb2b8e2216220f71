"""The variables by which launchers give a process its rank.

A command that judges in one process, or starts ranks of its own, has none: left in place they would make it wait for
others, or change how its ranks are started.
"""

from collections.abc import Mapping, MutableMapping

_NAMES = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS",
    }
)  # fmt: skip
_PREFIXES = ("PET_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MV2_COMM_WORLD_", "MPI_LOCAL")
"""PET_ and a name is torchrun's own option of that name; accelerate and DeepSpeed read those of MPI."""


def names_rank(variable: str) -> bool:
    """Whether a variable is one of a launcher's."""
    return variable in _NAMES or variable.startswith(_PREFIXES)


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that no launcher has started."""
    return {name: value for name, value in environment.items() if not names_rank(name)}


def leave(environment: MutableMapping[str, str]) -> None:
    """Take a launcher's variables out of an environment."""
    for name in [each for each in environment if names_rank(each)]:
        del environment[name]

"""The pytest plugin for many ranks: options, fixtures, and which classes have the hooks."""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from contracts.ranks import console, cpu_sharing, exit, groups, plugin_compatibility, rank_environment
from contracts.ranks.collection import Collection
from contracts.ranks.phases import Phases
from contracts.ranks.session import Session

try:
    HERE = rank_environment.from_environment(os.environ)
except ValueError as error:
    raise pytest.UsageError(str(error)) from None
SET_WHERE_UNSET = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # c10d warns of every wait that times out, and we wait in slices
    "TORCH_FR_BUFFER_SIZE": "2000",  # entries of the flight recorder
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # NCCL's own watchdog would end the process that we want to keep
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",  # the test that waits for the device gets the error
    "OMP_NUM_THREADS": "1",
}


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    if HERE is not None:
        exit.under_guard(HERE, lambda: console.untaken(pluginmanager))
        for name, value in SET_WHERE_UNSET.items():
            os.environ.setdefault(name, value)
        cpu_sharing.take_turns(HERE.local_size)  # before torch has threads
        gc.disable()  # until all is imported (`Collection`)
    group = parser.getgroup("ranks", "tests of several ranks, under torchrun")
    group.addoption(
        "--dist-timeout", type=float, metavar="SECONDS", help="what a phase of a test may take (60; on devices 120)"
    )
    group.addoption(
        "--dist-grace", type=float, metavar="SECONDS", help="what peers get after a rank failed (1; on devices 5)"
    )
    group.addoption("--dist-hard", type=float, metavar="SECONDS", help="to come back from an abort (10; on devices 20)")
    group.addoption("--dist-backend", choices=groups.CHOICES, default="auto",
                    help="of the session's group. auto: nccl if each rank of a node has a device; staged, which takes "
                         "tensors through host memory, if there are fewer devices; gloo if there is none")  # fmt: skip
    group.addoption("--dist-recover", choices=("auto", "restart"), default="auto",
                    help="auto: a new group in place; restart: leave it to torchrun --max-restarts")  # fmt: skip
    group.addoption("--dist-out", metavar="DIR", help="where logs, stacks and the journal go (the temporary folder)")
    group.addoption("--dist-seed", type=int, default=0, metavar="N", help="mixed into every test's seed")
    group.addoption("--dist-max-aborts", type=int, default=20, metavar="N", help="give the session up after so many")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Run before other plugins: what they configure, such as where reports go, differs from rank to rank."""
    config.addinivalue_line(
        "markers",
        "dist(ranks=N, world=N, timeout=S): needs N ranks (all), those beyond stand idle; of a world the ranks have a "
        "default group of their own",
    )
    if HERE is not None:
        try:
            if not __debug__:
                raise pytest.UsageError("python -O strips assertions, so that no test can fail: unset PYTHONOPTIMIZE")
            plugin_compatibility.refuse(config)
            ranks = Session(config, HERE)
        except pytest.UsageError:
            exit.through(pytest.ExitCode.USAGE_ERROR, final=True)
            raise
        except OSError as error:
            exit.through(pytest.ExitCode.USAGE_ERROR, final=True)
            raise pytest.UsageError(
                f"--dist-out: {error.filename} cannot be written: {error.strerror}; name a folder with space"
            ) from error
        for name, hooks in {
            "ranks": ranks,
            "ranks-collection": Collection(ranks),
            "ranks-phases": Phases(ranks),
        }.items():
            config.pluginmanager.register(hooks, name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    code = yield
    ranks = config.pluginmanager.getplugin("ranks")
    if ranks is None:
        exit.through(int(code or 0))
        return code
    return ranks.leave(int(code or 0))


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Rank 0's `tmp_path`, the same on every rank. Several nodes need a --basetemp that they share."""
    ranks = request.config.pluginmanager.getplugin("ranks")
    return tmp_path if ranks is None else Path(ranks.job.from_rank_0(str(tmp_path)))


@pytest.fixture
def test_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test, equal on every rank; torch, numpy and random are seeded with it already."""
    return plugin_compatibility.seed_of(request.node.nodeid, request.config.getoption("dist_seed"))


@pytest.fixture
def rank_seed(test_seed: int) -> int:
    """A seed of this test that is different on every rank."""
    return test_seed + 1 + (0 if HERE is None else HERE.rank)

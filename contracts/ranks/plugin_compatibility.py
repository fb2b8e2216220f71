"""Other plugins on several ranks: which are refused, which are silenced, which random generators are seeded alike."""

from __future__ import annotations

import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

WRITTEN_BY_OTHERS = ("xmlpath", "report_log", "htmlpath", "resultlog", "json_report_file")
REMEMBERED = (
    "lfplugin",
    "nfplugin",
    "stepwiseplugin",
)  # the parts of the cache plugin that write at the end of a session


def refuse(config: pytest.Config) -> None:
    """Refuse options that cannot work under torchrun.

    Raises: pytest.UsageError."""
    option = config.option
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None) or getattr(option, "dist", "no") != "no":
        raise pytest.UsageError(
            "xdist under torchrun: its workers would join as the same rank; leave out -n and --dist"
        )
    if "--dist-out" in (*config.invocation_params.args, *os.environ.get("PYTEST_ADDOPTS", "").split()):
        raise pytest.UsageError(
            "--dist-out DIR in two words: after a restart DIR exists, and pytest takes it for a path of tests, so that "
            "every test gets another id; write --dist-out=DIR"
        )
    if getattr(option, "usepdb", False) or getattr(option, "trace", False):
        raise pytest.UsageError("--pdb under torchrun: the ranks share one terminal; run the test with one rank")


def quieten(config: pytest.Config) -> None:
    """Leave the report files, snapshots and the cache to rank 0."""
    for name in WRITTEN_BY_OTHERS:
        if getattr(config.option, name, None):
            setattr(config.option, name, None)
    if hasattr(config.option, "update_snapshots"):
        config.option.update_snapshots = False
        config.option.warn_unused_snapshots = True
    if config.pluginmanager.hasplugin("syrupy"):
        config.pluginmanager.register(_Agreeing(), "ranks-snapshots")


def forget(config: pytest.Config) -> None:
    """Keep this rank from writing the cache; called after collection, which reads it."""
    for name in REMEMBERED:
        if config.pluginmanager.hasplugin(name):
            config.pluginmanager.unregister(name=name)


class _Agreeing:
    """syrupy's fixture on ranks other than 0, because only rank 0 compares and writes snapshots."""

    @pytest.fixture
    def snapshot(self) -> _Anything:
        return _Anything()


class _Anything:
    """Equals everything; calls and attributes return itself."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]  # as syrupy's own

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self

    def __getattr__(self, _: str) -> _Anything:
        return self


def own_basetemp(config: pytest.Config, rank: int) -> None:
    """Give each rank its own folder below --basetemp, because pytest empties the given folder."""
    if config.option.basetemp:
        base = Path(config.option.basetemp).absolute()
        base.mkdir(parents=True, exist_ok=True)
        config.option.basetemp = str(base / f"rank{rank}")


def seed_of(nodeid: str, base: int) -> int:
    """A test's seed: equal on every rank and in every process, which `hash` is not."""
    return zlib.crc32(nodeid.encode()) ^ base


def roll(seed: int) -> None:
    """Seed the random generators of the modules that are loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack for every kind of device: 3 ms
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


def draw_alike(backend: str) -> None:
    """Make hypothesis draw the same on every rank: from the test's name, without a database or deadlines."""
    from hypothesis import HealthCheck, Phase, settings

    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if backend != "nccl" else ()))
    settings.register_profile(
        "ranks", settings(), derandomize=True, database=None, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), phases=phases, print_blob=False,
    )  # fmt: skip
    settings.load_profile("ranks")


def hypothesis_of(item: pytest.Item) -> Any:
    """The handle that hypothesis puts on its tests, whose `inner_test` may be replaced; None for other tests."""
    return getattr(getattr(item, "obj", None), "hypothesis", None)

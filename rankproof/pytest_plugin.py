"""rankproof in a project's own pytest: the installed plugin, and the decorator for a test file of the project.

    from rankproof import parametrize_with_contracts

    @parametrize_with_contracts([Ours()], profile="launch")
    def test_ours(contract):
        contract()

pytest loads this module in every session of an environment that has rankproof. It therefore imports nothing but pytest;
the package `contracts`, and torch with some contracts, come with the first test that asks for one: a project may have a
package of that name. All options and ini keys begin with `rankproof`, and so does the one fixture.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rankproof import suite
from rankproof.options import CASE, JUDGE, MARK, NAME, OPTIONS, gating

if TYPE_CHECKING:
    from contracts.harness.promise import Promise
    from contracts.spec import Party

__all__ = ["parametrize_with_contracts"]


class _AsWritten:
    """Finds the modules of our `contracts` as Python does. pytest rewrites the assertions of every package that a
    distribution with a plugin brings, and would put its own words after those of a contract."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        ours = name.startswith("contracts.") and path is not None and any(suite.inside(each) for each in path)
        return PathFinder.find_spec(name, path, target) if ours else None


if not any(getattr(each, "__name__", "") == _AsWritten.__name__ for each in sys.meta_path):
    sys.meta_path.insert(0, _AsWritten)


def parametrize_with_contracts(
    stacks: Iterable[Party], *, profile: str | None = None, deviations: str | Path | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of each contract of one process, for each stack.

    The test function takes the argument `contract` and calls it. A violated contract fails with the values, what is
    declared as a deviation is an expected failure, and what the stack does not offer is skipped. These are tests like
    any other: none is missed that was deselected or skipped, as `rankproof check` would miss it.

    Args:
        stacks: the stacks under test (`contracts.spec.stack.Party`). Two need different names.
        profile: which contracts, as for `rankproof check`; the option or ini key if None, or else all of one process.
        deviations: TOML file of declared deviations; the option or ini key if None.
    """
    return pytest.mark.rankproof_contracts(tuple(stacks), profile, None if deviations is None else Path(deviations))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup(NAME, "rankproof: conformance of a training stack")
    for name, told in OPTIONS.items():
        option, key = f"--rankproof-{name}", f"rankproof_{name}"
        if name == "with":
            group.addoption(option, dest=key, action="append", metavar="NAME", help=told)
            parser.addini(key, told, type="args")
        else:
            group.addoption(option, dest=key, metavar="DIR" if name == "report" else name.upper(), help=told)
            parser.addini(key, told)
    group.addoption("--rankproof-selftest", action="store_true", help="first judge the suite's own mutants")
    group.addoption(
        "--rankproof-gate", action="store_true", help="let the verdict decide the exit code: incomplete is red"
    )


@pytest.hookimpl(trylast=True)  # behind the conftest files that load the judge themselves
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(stacks, profile, deviations): made by parametrize_with_contracts")
    # `@` has no meaning in an expression of -k, and stands in the name of every case on a leaner recipe
    config.option.keyword = re.sub(r"([^\s()]+)@([\w-]+)", r"(\1 and \2)", config.option.keyword or "")
    if gating(config):
        judge(config)


def judge(config: pytest.Config) -> Any:
    """The module that judges, as a plugin of this session."""
    manager = config.pluginmanager
    if not manager.has_plugin(JUDGE):
        _load()
        from contracts.ranks.rank_environment import several

        if several(os.environ):
            raise pytest.UsageError(f"several ranks need -p {JUDGE} on the command line")
        manager.import_plugin(JUDGE)
    return manager.get_plugin(JUDGE)


def _load() -> None:
    """Have our `contracts` in this session.

    Raises:
        UsageError: where the project's own is meant by that name.
    """
    try:
        suite.load_alone()
    except suite.Clash as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if CASE in metafunc.fixturenames:
        judge(metafunc.config).parametrize(metafunc)
    for mark in metafunc.definition.iter_markers(MARK):
        _load()
        from contracts.spec import Refused, interpreter

        try:
            interpreter.refuse_without_assertions()  # -OO strips what the contracts are read from
        except Refused as error:
            raise pytest.Collector.CollectError(str(error)) from None
        from contracts.harness import own_tests

        own_tests.parametrize(metafunc, *mark.args)


@pytest.fixture
def rankproof_case(request: pytest.FixtureRequest) -> Promise:
    """One planned case, ready to be judged on the stack under test."""
    promise: Promise = judge(request.config).promise_of(request)
    return promise

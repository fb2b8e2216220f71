"""The tests of `dist_selftest`: one for each mutant, and one for each case of the reference."""

import pytest

from contracts.harness.dist_selftest import Trial, put


def test_trial(trial: Trial, request: pytest.FixtureRequest) -> None:
    put(trial, request.node)

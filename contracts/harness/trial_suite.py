"""The tests of `trials`: one for each mutant, and one for each case of the reference."""

from __future__ import annotations

import pytest

from contracts.harness.trials import Trial, put


def test_trial(trial: Trial, request: pytest.FixtureRequest) -> None:
    put(trial, request.node)

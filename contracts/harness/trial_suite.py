"""The tests of `trials`: one a mutant and one a case of the correct party."""

from __future__ import annotations

import pytest

from contracts.harness.trials import Trial, put


def test_trial(trial: Trial, request: pytest.FixtureRequest) -> None:
    put(trial, request.node)

"""The law as tests: one function a tier, one test an item of the plan. `lanegate check` runs this file, and the
`tests_*` folders of this repository import from it, so that both judge alike."""

from __future__ import annotations

import pytest

from contracts.harness.plugin import Promise


@pytest.mark.unit
def test_unit(promise: Promise) -> None:
    promise.keep()


@pytest.mark.gpu
def test_gpu(promise: Promise) -> None:
    promise.keep()


@pytest.mark.dist
def test_dist(promise: Promise) -> None:
    promise.keep()

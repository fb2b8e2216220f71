"""Where snapshots lie: one folder at the root, for whoever reads them, wherever the tests that keep them stand."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Absolute: syrupy looks for unused snapshots beside every tests_* folder, and `../snapshots` has a name in each.
    config.option.snapshot_dirname = str(Path(__file__).parents[1] / "snapshots")

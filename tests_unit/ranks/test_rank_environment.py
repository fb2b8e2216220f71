"""What a process may be told of its rank, and what is refused, because every rank would judge alone and be green."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.harness.ranks import rank_environment
from contracts.instruments.ranks import here

TWO = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29511"}
REFUSED: dict[str, tuple[Mapping[str, str], str]] = {
    "no-rank": ({"RANK": "", "LOCAL_RANK": ""}, "RANK is not set; LOCAL_RANK is not set"),
    "no-local-rank": ({"LOCAL_RANK": ""}, "LOCAL_RANK is not set"),
    "words": ({"RANK": "one"}, "RANK is 'one', not a whole number of at least 0"),
    "negative": ({"RANK": "-1"}, "RANK is '-1', not a whole number of at least 0"),
    "no-world": ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a whole number of at least 1"),
    "beyond-the-world": ({"RANK": "2"}, "RANK is 2, and WORLD_SIZE is 2"),
    "beyond-the-node": ({"LOCAL_RANK": "2"}, "LOCAL_RANK is 2, and LOCAL_WORLD_SIZE is 2"),
    "two-errors": ({"RANK": "x", "LOCAL_RANK": "y"}, "RANK is 'x', not a whole number of at least 0; LOCAL_RANK is"),
    "no-count": ({"TORCHELASTIC_RESTART_COUNT": "-"}, "TORCHELASTIC_RESTART_COUNT is '-', not a whole number"),
    "no-port": ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', not a whole number of at least 1"),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", REFUSED)
def test_a_process_that_does_not_know_its_rank_is_refused(name: str) -> None:
    changed, words = REFUSED[name]
    with pytest.raises(ValueError, match="Start the ranks with torchrun, or unset WORLD_SIZE") as caught:
        rank_environment.from_environment({**TWO, **changed})
    assert words in str(caught.value)


@pytest.mark.unit
@pytest.mark.parametrize("alone", [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_is_one_process(alone: Mapping[str, str]) -> None:
    assert not rank_environment.several(alone)
    assert rank_environment.from_environment(alone) is None


@pytest.mark.unit
def test_what_torchrun_writes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    place = rank_environment.from_environment(TWO)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size, place.port) == (1, 2, 1, 2, 29511)
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert (here().rank, here().world, here().local_rank) == (1, 2, 1)


@pytest.mark.unit
@given(st.dictionaries(st.sampled_from([*TWO, "MASTER_ADDR"]), st.text(max_size=6)))
def test_any_environment_is_a_place_or_is_refused_with_words(said: Mapping[str, str]) -> None:
    words, place = "", None
    try:
        place = rank_environment.from_environment({**TWO, **said})
    except ValueError as error:
        words = str(error)
    if words:
        assert "Start the ranks with torchrun" in words
    else:
        assert place is None or 0 <= place.rank < place.size


@pytest.mark.unit
@pytest.mark.parametrize("plugin", ["contracts.harness.plugin", "contracts.harness.ranks.plugin"])
def test_pytest_refuses_before_it_collects(tmp_path: Path, plugin: str) -> None:
    (tmp_path / "test_red.py").write_text("def test_red():\n    assert 0\n", encoding="utf-8")
    told = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RANK", "LOCAL_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin, str(tmp_path)],
        env={**told, "WORLD_SIZE": "2", "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "ERROR: WORLD_SIZE is '2', so this process is one of several ranks, but RANK" in done.stderr
    assert "Traceback" not in done.stderr

"""A rank's variables that are accepted, and those that are refused, because every rank would judge by itself."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.instruments.ranks import ALONE, here, stated
from contracts.ranks import rank_environment
from contracts.spec import Refused
from tests_unit._parties.running import ran

TWO = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29511"}
REFUSED: dict[str, tuple[Mapping[str, str], str]] = {
    "no-rank": ({"RANK": "", "LOCAL_RANK": ""}, "RANK = '': is not set LOCAL_RANK = '': is not set"),
    "no-local-rank": ({"LOCAL_RANK": ""}, "LOCAL_RANK = '': is not set"),
    "words": ({"RANK": "one"}, "RANK = 'one': is not a whole number of at least 0"),
    "negative": ({"RANK": "-1"}, "RANK = '-1': is not a whole number of at least 0"),
    "no-world": ({"WORLD_SIZE": "two"}, "WORLD_SIZE = 'two': is not a whole number of at least 1"),
    "beyond-the-world": ({"RANK": "2"}, "RANK = '2': is not below WORLD_SIZE, 2"),
    "beyond-the-node": ({"LOCAL_RANK": "2"}, "LOCAL_RANK = '2': is not below LOCAL_WORLD_SIZE, 2"),
    "two-errors": ({"RANK": "x", "LOCAL_RANK": "y"}, "RANK = 'x': is not a whole number of at least 0 LOCAL_RANK = "),
    "no-count": ({"TORCHELASTIC_RESTART_COUNT": "-"}, "TORCHELASTIC_RESTART_COUNT = '-': is not a whole number"),
    "no-port": ({"MASTER_PORT": "http"}, "MASTER_PORT = 'http': is not a whole number of at least 1"),
    "no-node": ({"GROUP_RANK": "first"}, "GROUP_RANK = 'first': is not a whole number of at least 0"),
}
REMEDY = "; start the ranks with torchrun, or unset WORLD_SIZE and RANK for one process"


@pytest.mark.parametrize("reads", [rank_environment.from_environment, stated])
@pytest.mark.parametrize("name", REFUSED)
def test_a_process_that_does_not_know_its_rank_is_refused(name: str, reads: Callable[..., object]) -> None:
    changed, words = REFUSED[name]
    with pytest.raises(ValueError, match=REMEDY) as caught:
        reads({**TWO, **changed})
    assert words in str(caught.value).replace(REMEDY, "").replace("\n", " ")


def test_a_rank_without_a_world_size_is_refused_even_in_a_world_of_one() -> None:
    assert stated({"LOCAL_RANK": "3"}) == ALONE
    for half in ({"RANK": "0"}, {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": ""}, {"RANK": "0", "WORLD_SIZE": "1"}):
        with pytest.raises(Refused, match="is not set"):
            stated(half)


@pytest.mark.parametrize("alone", [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_a_process_without_a_launcher_has_no_rank(alone: Mapping[str, str]) -> None:
    assert not rank_environment.several(alone)
    assert rank_environment.from_environment(alone) is None


def test_the_variables_of_torchrun_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    place = rank_environment.from_environment(TWO)
    assert (place.rank, place.size, place.local_rank, place.local_size, place.port) == (1, 2, 1, 2, 29511)
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert (here().rank, here().world, here().local_rank) == (1, 2, 1)


@given(st.dictionaries(st.sampled_from([*TWO, "MASTER_ADDR"]), st.text(max_size=6)))
def test_any_environment_gives_a_rank_or_a_refusal_with_a_message(said: Mapping[str, str]) -> None:
    words, place = "", None
    try:
        place = rank_environment.from_environment({**TWO, **said})
    except ValueError as error:
        words = str(error)
    if words:
        assert REMEDY in words
    else:
        assert place is None or 0 <= place.rank < place.size


@pytest.mark.parametrize("plugin", ["contracts.harness.plugin", "contracts.ranks.plugin"])
def test_pytest_refuses_a_malformed_rank_before_collecting(tmp_path: Path, plugin: str) -> None:
    (tmp_path / "test_red.py").write_text("def test_red():\n    assert 0\n", encoding="utf-8")
    told = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RANK", "LOCAL_"))}
    done = ran([sys.executable, "-m", "pytest", "-p", plugin, str(tmp_path)],
               env={**told, "WORLD_SIZE": "2", "PYTHONPATH": str(Path(__file__).parents[2])}, cwd=tmp_path, limit_s=300,
               code=pytest.ExitCode.USAGE_ERROR)  # fmt: skip
    assert "ERROR: RANK = None: is not set; start the ranks with torchrun" in done.stderr
    assert "Traceback" not in done.stderr

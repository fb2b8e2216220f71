"""`rankproof gate`: stacks in turn, each in its own environment, and the worst of their exit codes."""

from pathlib import Path

import pytest

from contracts.harness import environments
from contracts.harness.commands.gate import worst
from contracts.spec import Unreachable
from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import RANKPROOF, environment, rankproof


@pytest.mark.parametrize(
    ("codes", "word"),
    [((), "conformant"), ((0, 0), "conformant"), ((0, 3, 5), "incomplete"), ((3, 4, 0), "broken"),
     ((4, 1, 3), "violated"), ((0, -9), "broken"), ((0, 137), "broken"), ((5,), "nothing ran")],
)  # fmt: skip
def test_the_gate_ends_with_the_worst_exit_code_and_counts_a_killed_check_as_broken(
    codes: tuple[int, ...], word: str
) -> None:
    assert worst(codes) == EXIT_CODES[word]  # type: ignore[index]


def test_a_stack_is_judged_in_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{RANKPROOF.parent}:{environment()['PATH']}")
    monkeypatch.setenv("MEGATRON", "0.18.1 0.17.1")
    monkeypatch.delenv("TITAN", raising=False)
    (tmp_path / "Makefile").write_text(
        "titan:\n\tmkdir -p .venv-torchtitan-$(TITAN)/bin\n\ttouch .venv-torchtitan-$(TITAN)/bin/rankproof\n"
        "megatron-if-possible:\n\ttrue\n"
    )
    assert environments.judge_of("ours:Ours") == str(RANKPROOF)
    assert environments.judge_of("torchtitan") == str(tmp_path / ".venv-torchtitan-0.3.0/bin/rankproof")
    assert environments.judge_of("torchtitan==0.2.2") == str(tmp_path / ".venv-torchtitan-0.2.2/bin/rankproof")
    assert environments.judge_of("megatron") == str(RANKPROOF), "it could not be made, and this one judges what it can"
    for version in ("0.18.1", "0.16.1"):
        (tmp_path / f".venv-megatron-{version}/bin").mkdir(parents=True)
        (tmp_path / f".venv-megatron-{version}/bin/rankproof").touch()
    assert environments.judge_of("megatron") == str(tmp_path / ".venv-megatron-0.18.1/bin/rankproof")
    own = str(tmp_path / ".venv-megatron-0.16.1/bin/rankproof")
    assert environments.judge_of("megatron-distributed-optimizer==0.16.1") == own
    with pytest.raises(Unreachable, match=r"transformers: `make .*TRANSFORMERS=5.23.0` could not make its environment"):
        environments.judge_of("transformers")


@pytest.mark.slow
def test_stacks_are_judged_in_turn_and_the_worst_code_is_returned(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(
        "class Ours:\n    name, version, layouts, labels = 'ours', '1', frozenset(), {}\n"
        "    offers = frozenset({'blocks'})\n\n    def blocks(self, pattern, depth):\n        return ()\n"
    )
    words = ("--stack", "ours:Ours", "--stack", "reference", "--profile", "PAT-01", "--ranks-profile", "PAR-06m")
    done = rankproof(
        "gate", *words, "--ranks", "2", "--jobs", "1", cwd=tmp_path, limit_s=900, code=EXIT_CODES["violated"]
    )
    assert "ours:Ours answers nothing that PAR-06m asks: no ranks are started for it" in done.stdout
    assert done.stdout.count("== rankproof check ") == 3
    assert (tmp_path / "reports/reference-ranks/run.jsonl").exists()
    assert "not conformant: the worst exit code is 1" in done.stderr

"""`make gpu`: parts that end, are cut off, continue and are weighed, rehearsed on a CPU."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression  # what -k means

from benchmarks import gpu
from benchmarks.gpu import Part, Run
from contracts.contract import LAW
from contracts.court import profiles
from tests_unit._parties.running import ran

ROOT = Path(__file__).parents[1]


def _part(name: str, script: str, limit_s: float = 60.0) -> Part:
    return Part(name=name, words=("-c", script), limit_s=limit_s)


def _run(out: Path, *parts: Part, resume: bool = False, seconds: float = 60.0) -> dict[str, gpu.Ended]:
    run = Run(out, "cpu", until=time.monotonic() + seconds, resume=resume)
    run.beside_each_other(parts)
    return run.ended


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([3, 1, 0], 1), ([3, 4], 4), ([4, 2], 2), ([0, 5], 5), ([3, 5], 3), ([0, 0], 0), ([], 5)],
)
def test_a_violation_outweighs_incomplete_parts(codes: list[int], expected: int) -> None:
    assert gpu.worst(codes) == expected


def test_every_contract_and_every_mutant_of_the_tier_is_in_one_part(tmp_path: Path) -> None:
    parts = [part for group in gpu.groups(tmp_path, "cuda") for part in group]
    judged = [part.words[part.words.index("--profile") + 1] for part in parts if "--profile" in part.words]
    items = sorted(str(item) for profile in judged for item in profiles.plan(LAW, profile).items)
    assert items == sorted(str(item) for item in profiles.plan(LAW, "gpu").items)
    chosen = [part.words[part.words.index("-k") + 1] for part in parts if "-k" in part.words]
    for id in profiles.plan(LAW, "gpu").promises:
        seen = [Expression.compile(each).evaluate(lambda name, id=id, **_: name == id) for each in chosen]
        assert seen.count(True) == 1, f"the mutants of {id} are in {seen.count(True)} parts"


def test_a_part_of_the_gpu_run_keeps_its_output_in_order(tmp_path: Path) -> None:
    ended = _run(tmp_path, _part("one", "print('a'); print('b'); raise SystemExit(3)"), _part("two", "1 / 0"))
    assert {name: each.code for name, each in ended.items()} == {"one": 3, "two": 1}
    assert (tmp_path / "one.txt").read_text() == "a\nb\n"
    assert "ZeroDivisionError" in (tmp_path / "two.txt").read_text()
    skipped = replace(_part("skipped", "print('3 skipped')"), says=" passed")
    assert _run(tmp_path, skipped)["skipped"].code == gpu.NOTHING_RAN
    assert _run(tmp_path, replace(skipped, words=("-c", "print('1 passed')")))["skipped"].code == 0
    assert _run(tmp_path, _part("killed", "import os; os.abort()"))["killed"].code == gpu.BROKEN


WAITS = """
import subprocess, sys
print('begun', flush=True)
subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])
"""


def test_a_part_of_the_gpu_run_ends_at_its_own_or_the_total_time_limit(tmp_path: Path) -> None:
    before = time.monotonic()
    ended = _run(tmp_path, _part("long", WAITS, 3.0), _part("quick", "print('c')"))
    assert time.monotonic() - before < 3 + gpu.GRACE_S
    assert ended["long"].code == gpu.INCOMPLETE
    assert ended["long"].words == "cut off after 3 s"
    assert ended["quick"].code == 0
    assert _run(tmp_path, _part("late", "print('d')"), seconds=0.0) == {}


def test_a_finished_part_is_not_run_again_on_the_same_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path, _part("red", "raise SystemExit(1)"), _part("long", WAITS, 2.0))
    again = (_part("red", "raise SystemExit(0)"), _part("long", "print('now')"))
    ended = _run(tmp_path, *again, resume=True)
    assert {name: each.code for name, each in ended.items()} == {"red": 1, "long": 0}
    assert "red: ended in an earlier run with 1" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "_commit", lambda: "another")
    assert _run(tmp_path, *again, resume=True)["red"].code == 0
    assert "this is another on cpu" in capsys.readouterr().err


def test_a_part_whose_package_is_missing_is_skipped_and_incomplete(tmp_path: Path) -> None:
    if all(map(gpu.importlib.util.find_spec, gpu.PACKAGES.values())):
        pytest.skip("mamba-ssm and Transformer Engine are installed here")
    run = Run(tmp_path, "cuda", until=time.monotonic() + 60, resume=False)
    run.beside_each_other([_part("modules", "print()"), _part("of-scans", "print()")])
    skipped = [each for each in run.ended.values() if each.words.startswith("skipped, ")]
    assert skipped
    assert {each.code for each in skipped} == {gpu.INCOMPLETE}
    assert json.loads(run.state.read_text() if run.state.exists() else '{"ended": []}')["ended"] == [
        vars(each) for each in run.ended.values() if each not in skipped
    ]


def test_the_rehearsal_of_the_gpu_run_runs_the_same_commands(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(tmp_path)]
    done = ran([*words, "--only", "cold,observe"], cwd=ROOT, code=gpu.INCOMPLETE)
    assert "[cold] INCOMPLETE: reference" in done.stderr
    assert "0  observe: ended" in done.stderr
    assert "torch sees no CUDA device" in (tmp_path / "cold.txt").read_text()
    wrong = ran([*words, "--only", "hot"], cwd=ROOT, code=2)
    assert "--only hot: the parts are moe, observe, receipt, cold," in wrong.stderr
    with subprocess.Popen([*words, "--only", "moe"], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        assert "== moe: python -m benchmarks" in running.stderr.readline()
        running.send_signal(signal.SIGTERM)
        running.send_signal(signal.SIGTERM)  # `timeout` says so twice
        said = running.stderr.read()
        assert running.wait() == gpu.INCOMPLETE, said
        assert "3  moe: cut off" in said


def test_the_gpu_run_finds_the_benchmarks_outside_the_environment(tmp_path: Path) -> None:
    found = Part(name="found", words=("-S", "-c", "import benchmarks; print(benchmarks.__path__)"), limit_s=60.0)
    _run(tmp_path, found)
    assert str(ROOT / "benchmarks") in (tmp_path / "found.txt").read_text()

"""One contract that fails the suite's own test does not silence the gate; and what is printed meanwhile is in a log."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.court import record
from contracts.court.fitness import unfit
from contracts.harness import kill_matrix
from contracts.harness.output import HEAD, TAIL
from contracts.harness.selftest import Matrix
from contracts.spec import Refused
from contracts.spec.records import EXIT_CODES, FORMS, Fate, Kill, Outcome, Result
from tests_unit._parties.running import BAD, Done, environment, needs, ran, rankproof, write

VIOLATED, INCOMPLETE, BROKEN, USAGE = EXIT_CODES["violated"], EXIT_CODES["incomplete"], EXIT_CODES["broken"], 2

# A contract that is wrong in one case, as a rounding makes one wrong on one CPU; or that does what is planted instead.
PLANTED = """
import os, signal
from dataclasses import replace
from contracts.contract import LAW
from contracts.harness.cli import main
from contracts.harness.families import read_checks

read_checks()

sound = LAW.contracts["TOPO-02b"]

def check(stack, *case):
    if case == sound.cases["etp-above-tp"]:
        {does}
    sound.check(stack, *case)

LAW.contracts["TOPO-02b"] = replace(sound, check=check)
main(["selftest", "--only", "TOPO-02", "--with", "none", "--report", "proof", "--once"])
"""
FALSE_ALARM = "raise AssertionError('L2 error inf over 1e-12')"


def _tested(cwd: Path, does: str) -> Done:
    return ran([sys.executable, "-c", PLANTED.format(does=does)], cwd=cwd, env=environment(OMP_NUM_THREADS="1"))


def _ended(case: str, outcome: Outcome, id: str = "A-01") -> Result:
    return Result(id=id, case=case, outcome=outcome, words=f"words of {case}")


def _fate(case: str, fate: Fate, id: str = "A-01") -> Kill:
    return Kill(mutant="M", of=id, case=case, fate=fate, words=f"words of {case}")


@pytest.mark.parametrize(
    ("number", "more"), [(1, []), (2, []), (3, []), (4, ["and 1 more"]), (5, ["and 2 more"]), (9, ["and 6 more"])]
)
def test_three_reasons_are_shown_and_the_others_counted(number: int, more: list[str]) -> None:
    told = [f"on the reference A-01[c{n}] is violated: words of c{n}" for n in range(number)]
    found = unfit([_ended(f"c{n}", "violated") for n in range(number)], [], [])
    assert found == {"A-01": "\n".join([*told[:3], *more])}


def test_a_contract_is_unfit_with_its_reason_unless_it_could_not_be_asked() -> None:
    fine: tuple[Outcome, ...] = ("holds", "deviates", "not offered", "not run", "untested")
    reference = [*(_ended(each, each) for each in fine), _ended("b", "broken"), _ended("v", "violated", "A-02")]
    kills = [_fate("k", "killed"), _fate("n", "void"), _fate("s", "survived"), _fate("w", "wrong words"),
             _fate("c", "crashed", "A-03")]  # fmt: skip
    assert unfit(reference, kills, ["A-02", "A-04"]) == {
        "A-01": "on the reference A-01[b] is broken: words of b\nits mutant M in s survived: words of s\n"
        "its mutant M in w was caught with other words: words of w",
        "A-02": "on the reference A-02[v] is violated: words of v\n"
        "it has no mutant, or none on its leanest recipes, so nothing shows that it can fail",
        "A-03": "its mutant M in c crashed: words of c",
        "A-04": "it has no mutant, or none on its leanest recipes, so nothing shows that it can fail",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("unfit")


@pytest.fixture(scope="module")
def tested(folder: Path) -> Done:
    """The self-test with a false alarm planted in one of three contracts; its proof is in `folder`."""
    return _tested(folder, FALSE_ALARM)


def test_a_self_test_names_a_false_alarm_and_still_writes_its_proof(tested: Done, folder: Path) -> None:
    assert tested.returncode == VIOLATED, tested.stderr
    assert "unfit, and left out of every check with this proof: TOPO-02b\n" in tested.stdout
    assert (folder / "proof/kills.json").exists()


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=needs("xdist"))])
def test_all_but_the_unfit_contract_are_judged_and_the_verdict_names_it(jobs: str, tested: Done, folder: Path) -> None:
    check = ("check", "--with", "none", "--profile", "TOPO-02", "--proof", "proof", "--jobs", jobs)
    done = rankproof(*check, "--report", f"out{jobs}", cwd=folder, code=INCOMPLETE)
    run, footer = record.load(folder / f"out{jobs}")
    outcomes: dict[str, set[str]] = {result.id: set() for result in run.results}
    for result in run.results:
        outcomes[result.id].add(result.outcome)
    assert outcomes == {"TOPO-02": {"holds"}, "TOPO-02a": {"holds"}, "TOPO-02b": {"not run"}}
    assert footer.word == "incomplete"
    assert [each.id for each in run.unfit] == ["TOPO-02b"]
    assert "its contract is unfit: on the reference TOPO-02b[etp-above-tp] is violated: L2 error inf" in done.stdout
    for form in FORMS:
        told = rankproof("report", f"out{jobs}", "--form", form, cwd=folder, code=INCOMPLETE)
        assert "1 contract is unfit: TOPO-02b" in told.stdout, form
    assert "1 contract is unfit: TOPO-02b" in rankproof("replay", f"out{jobs}", cwd=folder, code=INCOMPLETE).stdout


def test_a_violation_counts_even_if_another_contract_is_unfit(tested: Done, folder: Path) -> None:
    check = ("check", "--with", "none", "--profile", "TOPO-02", "--proof", "proof", "--report", "bad")
    done = rankproof(*check, "--stack", f"{BAD}:ForgetsPipeline", cwd=folder, code=VIOLATED)
    assert "VIOLATED: " in done.stdout
    assert "1 contract is unfit: TOPO-02b" in done.stdout


def test_a_contract_that_the_self_test_did_not_try_is_not_judged(tested: Done, folder: Path) -> None:
    check = ("check", "--with", "none", "--profile", "TOPO-03", "--proof", "proof", "--report", "beyond")
    done = rankproof(*check, cwd=folder, code=INCOMPLETE)
    assert "the self-test that was given (--only TOPO-02) did not try TOPO-03" in done.stdout


def test_the_self_test_is_reused_until_something_changes(tested: Done, folder: Path) -> None:
    words = ("selftest", "--only", "TOPO-02", "--with", "none", "--report", "proof", "--once")
    before = (folder / "proof/kills.json").read_bytes()
    spared = rankproof(*words, cwd=folder, OMP_NUM_THREADS="1")
    assert spared.stdout.startswith("not again: proof/kills.json is of these files, packages and settings, on this CPU")
    assert "unfit, and left out of every check" in spared.stdout
    assert (spared.returncode, (folder / "proof/kills.json").read_bytes()) == (VIOLATED, before)
    changed = folder / "changed"
    changed.mkdir()
    (changed / "kills.json").write_bytes(before)
    words = tuple("changed" if word == "proof" else word for word in words)
    other = rankproof(*words, cwd=folder, code=0, OMP_NUM_THREADS="2")  # without what was planted
    assert other.stdout.startswith("again: threads 2 instead of 1\n")


def test_a_killed_self_test_makes_no_contract_unfit(tmp_path: Path) -> None:
    write(tmp_path, {"proof/kills.json": "of an older one"})
    done = _tested(tmp_path, "os.write(2, b'out of memory\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == BROKEN
    assert "the self-test did not finish, so it says nothing about any contract" in done.stderr
    assert "out of memory\n" in done.stderr
    assert not (tmp_path / "proof/kills.json").exists()
    check = ("check", "--with", "none", "--profile", "TOPO-02", "--proof", "proof", "--report", "out")
    assert "no self-test has finished there" in rankproof(*check, cwd=tmp_path, code=USAGE).stderr
    assert not (tmp_path / "out").exists()


def _proof() -> kill_matrix.Proof:
    surroundings = kill_matrix.here(threads=1, helping=())
    about = kill_matrix.About(content=kill_matrix.content(), tier="unit", only="", surroundings=surroundings)
    held = Result(id="TOPO-02", case="pp2", outcome="holds")
    killed = Kill(mutant="M", of="TOPO-02", case="pp2", fate="killed", words="dp is 4")
    return kill_matrix.Proof(about=about, matrix=Matrix(baseline=(held,), kills=(killed,), unguarded=()))


def test_a_proof_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    kill_matrix.write(tmp_path, _proof())
    assert kill_matrix.load(tmp_path) == kill_matrix.load(tmp_path / "kills.json") == _proof()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"about": None}, "does not say what it is about"),
        ({"about": {"content": "0" * 64}}, "is of the suite with digest 000000000000, and the suite here has"),
        ({"score": 1}, "score"),
    ],
)
def test_a_proof_of_other_source_code_is_refused(change: dict[str, object], words: str, tmp_path: Path) -> None:
    kill_matrix.write(tmp_path, _proof())
    data = json.loads((tmp_path / "kills.json").read_text())
    for name, value in change.items():
        if value is None:
            del data[name]
        else:
            data[name] = {**data[name], **value} if isinstance(value, dict) else value
    (tmp_path / "kills.json").write_text(json.dumps(data))
    with pytest.raises(Refused, match=words):
        kill_matrix.load(tmp_path)


def test_a_proof_from_another_machine_is_accepted_and_the_differences_are_listed(tmp_path: Path) -> None:
    made = _proof()
    where = made.about.surroundings
    other = replace(where, cpu="Another", packages={**where.packages, "torch": "2.11.0"},
                    settings={**where.settings, "MKL_CBWR": "COMPATIBLE"})  # fmt: skip
    kill_matrix.write(tmp_path, replace(made, about=replace(made.about, surroundings=other)))
    told = kill_matrix.load(tmp_path).words()
    for words in ("made with torch 2.11.0", f"torch {where.torch} instead of 2.11.0",
                  f"cpu {where.cpu} instead of Another", "MKL_CBWR unset instead of COMPATIBLE"):  # fmt: skip
        assert words in told


def test_the_digest_of_the_suite_changes_with_any_of_its_files(tmp_path: Path) -> None:
    asked = "from contracts.harness import kill_matrix; print(kill_matrix.content())"
    root = Path(kill_matrix.__file__).parents[2]
    subprocess.run(["cp", "-r", str(root / "contracts"), str(tmp_path / "contracts")], check=True)
    seen = []
    (tmp_path / "contracts/proof").mkdir(exist_ok=True)
    for place, change in (("proof/kills.json", "{}"), ("court/verdict.py", "# a comment\n")):
        with (tmp_path / "contracts" / place).open("a") as file:
            file.write(change)
        words = [sys.executable, "-c", asked]
        done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True,
                              capture_output=True, text=True)  # fmt: skip
        seen.append(done.stdout.strip())
    assert seen[0] == kill_matrix.content(), "the proof that is shipped is no part of what it is about"
    assert seen[1] != seen[0]


LOUD = """
import os, sys
from pathlib import Path
from contracts.harness.output import Output
from contracts.harness.supervisor import supervised

folder = Path("out")
folder.mkdir()
output = Output(folder)

def work():
    with output.taken():
        print("the beginning")
        for number in range({lines}):
            os.write(2, b"%99d\\n" % number)
        print("API_TOKEN=hunter2hunter2")
        print("the end")
    return {code}

code = supervised(work, output)
output.end(ended={ended}, red=code != 0)
print("verdict")
"""


@pytest.mark.parametrize(("lines", "code", "ended"), [(0, 0, False), (0, 1, False), (0, 4, True), (40_000, 1, False)])
def test_output_of_mutants_goes_to_a_log_of_bounded_size(lines: int, code: int, ended: bool, tmp_path: Path) -> None:
    words = [sys.executable, "-c", LOUD.format(lines=lines, code=code, ended=ended)]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    log = (tmp_path / "out/output.log").read_text()
    assert done.stdout == "verdict\n"
    assert log.startswith("the beginning\n")
    assert log.endswith("the end\n")
    assert "hunter2" not in log
    assert len(log) < HEAD + TAIL + 1000
    assert ("bytes were cut here" in log) == (lines > 0)
    if code == 0:
        assert done.stderr == ""
    elif ended:
        assert done.stderr.endswith("3 lines in out/output.log:\nthe beginning\nAPI_TOKEN=[redacted]\nthe end\n")
    else:
        assert len(done.stderr.splitlines()) == 1
        assert "lines in out/output.log" in done.stderr
    if lines:
        assert f"{lines * 100 - HEAD - TAIL}"[:3] in done.stderr.rpartition("log, ")[2], "how much was cut"

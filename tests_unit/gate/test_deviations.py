"""Words that are filled into a deviations file from a record forgive exactly that record."""

import datetime
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.court import deviations, record
from contracts.court.verdict import verdict
from contracts.harness import proposed_deviations
from contracts.harness.cli import main
from contracts.harness.gate import today
from contracts.spec import Refused
from contracts.spec.records import Deviation, Item, Outcome, Result, Run, Violation
from contracts.spec.violations import Violated, compared, heard, parts_of, require_none
from tests_unit.test_cli import CANNED

TODAY = datetime.date(2026, 6, 15)
LATEST = today() + deviations.LONGEST
LATER = (today() + datetime.timedelta(days=90)).isoformat()
WQ, WK = (
    Violation(
        words=f"the gradient of {name} differs: L2 error 5.0e-01 over 1e-12; 1 at [0, 3], expected 2", tensor=name
    )
    for name in ("layers.1.wq", "layers.2.wk")
)
DP = Violation(words="dp is 4 and not 2, on rank 3")
PATH = Violation(words="a legal input was refused: load = '/tmp/x1y/iter_2': Expected 2 entries, but got 4; load less")
LISTS = Violation(words="rank 3 is left with 20 groups: [0, 1], [2, 3], [3]")

OLD = f"""# Why these stand here.

[[deviation]]
id = "PAR-01"
case = "*"
reason = "first"
issue = "#1"
owner = "mesh"
expires = {LATER}

# About the second.

[[deviation]]
id = "TOPO-02"
case = "pp*"
reason = "second"
issue = "#2"
owner = "mesh"
expires = {LATER}
"""


def run(*results: Result) -> Run:
    plan = replace(CANNED.plan, items=tuple(result.item for result in results), outside=())
    return replace(CANNED, plan=plan, results=results, deviations=(), kills=(), unclaimed=())


def violated(id: str, case: str, *parts: Violation) -> Result:
    return Result(id=id, case=case, outcome="violated", words=parts[0].words, violations=parts)


def ended(id: str, case: str, outcome: Outcome, seconds: float = 0.0) -> Result:
    return Result(id=id, case=case, outcome=outcome, words="some words", seconds=seconds)


ALIKE = run(violated("PAR-01", "tp2", WQ), violated("PAR-01", "ep2", WQ), violated("TOPO-02", "pp2", DP))
UNLIKE = run(
    violated("PAR-01", "tp2", WQ, WK, DP), violated("PAR-01", "ep2", WQ), ended("PAR-01", "dp2", "not offered"),
    violated("TOPO-02", "pp2", PATH), violated("TOPO-02", "pp4", LISTS), ended("TOPO-02", "tp2", "holds"),
)  # fmt: skip


@pytest.mark.parametrize("judged", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_filled_in_deviations_make_their_own_run_conformant(judged: Run, tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(OLD)
    assert verdict(judged, TODAY).word == "violated"
    with pytest.raises(Refused, match="do not say what they forgive"):
        deviations.load(file)
    count, unknown = proposed_deviations.fill(file, deviations.read(file), [judged])
    assert (count, unknown) == (2, ())
    after = verdict(replace(judged, deviations=deviations.load(file)), TODAY)
    assert after.word == "conformant", [*after.faults, *after.results]
    text = file.read_text()
    assert text.startswith("# Why these stand here.\n")
    assert "\n# About the second.\n" in text
    assert {entry["reason"] for entry in tomllib.loads(text)["deviation"]} == {"first", "second"}


def test_fill_does_not_split_an_entry_whose_cases_fail_alike() -> None:
    text, _ = proposed_deviations.filled(OLD, _read(OLD), ALIKE.results)
    entries = tomllib.loads(text)["deviation"]
    assert [(each["case"], each["says"], each.get("tensors")) for each in entries] == [
        ("*", "the gradient of * differs", ["layers.1.wq"]),
        ("pp*", "dp is # and not #, on rank #", None),
    ]


def test_proposed_words_leave_out_paths_and_lists_of_ranks() -> None:
    assert [each.says for each in proposed_deviations.needed((PATH, LISTS))] == [
        "a legal input was refused: load = *: Expected # entries, but got #; load less",
        "rank # is left with # groups:",
    ]


def test_fill_names_and_keeps_an_entry_that_no_run_matches() -> None:
    text, unknown = proposed_deviations.filled(OLD, _read(OLD), run(violated("TOPO-02", "pp2", DP)).results)
    assert [each.id for each in unknown] == ["PAR-01"]
    assert [each.get("says") for each in tomllib.loads(text)["deviation"]] == [None, "dp is # and not #, on rank #"]


def _read(text: str) -> tuple[Deviation, ...]:
    entries = tomllib.loads(text)["deviation"]
    return tuple(Deviation(**{**each, "expires": each["expires"].isoformat()}) for each in entries)


@pytest.mark.parametrize("judged", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_a_proposal_that_is_signed_forgives_its_run(judged: Run, tmp_path: Path) -> None:
    text = proposed_deviations.proposal(judged, judged.results, TODAY)
    for field in ("reason", "issue", "owner"):
        text = text.replace(f'{field} = ""', f'{field} = "said"')
    file = tmp_path / "signed.toml"
    file.write_text(text)
    after = verdict(replace(judged, deviations=deviations.load(file)), TODAY)
    assert after.word == "conformant", [*after.faults, *after.results]


@given(st.floats(allow_nan=False), st.integers())
def test_a_hash_in_a_deviation_matches_a_number_of_any_form(real: float, whole: int) -> None:
    words = f"y differs: L2 error {real:.1e} over {real!r}; {whole} at [{whole}, 0], in float32 and layers.1"
    masked = deviations.masked(words)
    assert masked == "y differs: L2 error # over #; # at [#, #], in float32 and layers.1"
    entry = Deviation(id="A-01", case="*", reason="r", issue="i", owner="o", expires=LATER, says=masked)
    assert deviations.forgives(entry, Violation(words=words))
    assert not deviations.forgives(entry, Violation(words=words.replace("float32", "float64")))


def test_many_asterisks_in_a_deviation_are_matched_quickly() -> None:
    """Four of them took five minutes on three hundred letters: every place of each was tried with every place of the
    others."""
    entry = Deviation(id="A-01", case="*", reason="r", issue="i", owner="o", expires=LATER, says="a" + "*a" * 40)
    assert deviations.forgives(entry, Violation(words="a" * 400))
    assert not deviations.forgives(replace(entry, says=f"{entry.says}b"), Violation(words="a" * 400))
    assert not deviations.forgives(replace(entry, says="dp*3"), Violation(words="dp is 4\nof 3")), "in one line"
    assert deviations.forgives(replace(entry, says="dp * of #*, *"), Violation(words="the dp is 4 of 32, on rank 3"))


def test_a_violation_leaves_out_tensors_of_a_comparison_that_passed() -> None:
    with heard() as comparisons:
        compared("the weight differs", [Violation(words="the weight w differs", tensor="w")])
        failing = compared("a differs; b differs", [WQ, WK])
        with pytest.raises(Violated) as raised:
            require_none("", f"loss agrees: {failing} (step 1)", "the norm is 2, 1 on one rank")
    assert parts_of(raised.value, comparisons) == (WQ, WK, Violation(words="the norm is 2, 1 on one rank"))


def test_a_violation_without_words_has_one_part() -> None:
    assert parts_of(AssertionError(), []) == (Violation(words="the check gave no words"),)


def test_the_command_fills_a_file_and_names_entries_that_no_run_reaches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.jsonl").write_text(record.write(run(violated("TOPO-02", "pp2", DP)), TODAY))
    file = tmp_path / "old.toml"
    file.write_text(OLD)
    with pytest.raises(SystemExit) as ending:
        main(["deviations", str(tmp_path), "--fill", str(file)])
    said = capsys.readouterr()
    assert ending.value.code == 0
    assert "1 entries have their words" in said.out
    assert "PAR-01[*] is violated in none of these runs" in said.err
    with pytest.raises(SystemExit):
        main(["deviations", str(tmp_path)])
    proposed = tomllib.loads(capsys.readouterr().out)["deviation"]
    assert [(each["id"], each["case"], each["says"]) for each in proposed] == [
        ("TOPO-02", "pp2", "dp is # and not #, on rank #")
    ]


@pytest.mark.parametrize(("besides", "more"), [(2, ""), (3, ""), (4, "; and 1 more"), (5, "; and 2 more")])
def test_three_undeclared_parts_are_shown_and_the_others_counted(besides: int, more: str) -> None:
    declared = Deviation(
        id="TOPO-02", case="pp2", reason="the mesh is rebuilt", issue="#7", owner="mesh", expires=LATER,
        says="dp is #",
    )  # fmt: skip
    others = [Violation(words=f"axis {axis} is lost") for axis in "abcde"[:besides]]
    judged = verdict(replace(run(violated("TOPO-02", "pp2", DP, *others)), deviations=(declared,)), TODAY)
    told = "; ".join(each.words for each in others[:3])
    assert judged.results[0].words.startswith(f"not declared: {told}{more}\nbeside what is")


def test_fill_leaves_cases_outside_the_profile_unchanged() -> None:
    """A case by itself stands for all of its recipes, one with a recipe for that one."""
    declared = Deviation(
        id="PAR-01", case="tp4@pairs", says="the gradient of * differs", reason="r", issue="#1", owner="mesh",
        expires=LATER,
    )  # fmt: skip
    judged = run(ended("PAR-01", "tp2@pairs", "holds"))
    for outside, faults in (("PAR-01[tp4]", 0), ("PAR-01[tp4@pairs]", 0), ("PAR-01[tp8]", 1)):
        here = replace(judged, plan=replace(judged.plan, outside=(outside,)), deviations=(declared,))
        assert len(verdict(here, TODAY).faults) == faults, outside


def test_fill_does_not_change_entries_of_an_included_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(OLD.replace("first", "of another file"))
    file = tmp_path / "mine.toml"
    taken = '[[taken]]\nfile = "other.toml"\ncases = ["TOPO-02[pp*]"]\n\n'
    first, second = OLD.split("# About the second.\n\n")
    file.write_text(f"{first}{taken}{second}")
    own = deviations.read(file, taken=False)
    assert [each.id for each in own] == ["PAR-01", "TOPO-02"]
    assert [each.id for each in deviations.read(file)] == ["TOPO-02", "PAR-01", "TOPO-02"]
    text, unknown = proposed_deviations.filled(file.read_text(), own, ALIKE.results)
    assert not unknown
    assert taken in text
    assert text.count("says = ") == 2


ENTRY = f"""
[[deviation]]
id = "PAR-01"
case = "tp2"
says = "dp is #"
reason = "r"
issue = "#1"
owner = "o"
expires = {LATER}
"""


def written(folder: Path, text: str, name: str = "d.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_an_entry_is_read_field_by_field(tmp_path: Path) -> None:
    text = f'{ENTRY}device = "cuda"\nversions = ["0.18.*"]\ntensors = ["wq"]\n'
    assert deviations.load(written(tmp_path, text)) == (
        Deviation(id="PAR-01", case="tp2", says="dp is #", reason="r", issue="#1", owner="o", expires=LATER,
                  device="cuda", versions=("0.18.*",), tensors=("wq",)),
    )  # fmt: skip
    assert deviations.load(written(tmp_path, ENTRY.replace(LATER, f'"{LATER}"')))[0].expires == LATER
    assert deviations.load(written(tmp_path, "")) == ()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"PAR-01"', '" "', "deviation 1.id = ' ': is empty"),
        ('"tp2"', '""', "deviation 1.case = '': is empty"),
        ('"r"', '"\\t"', "deviation 1.reason = '\\\\t': is empty"),
        ('"#1"', '""', "deviation 1.issue = '': is empty"),
        ('"o"', '""', "deviation 1.owner = '': is empty"),
        ('"dp is #"', '""', "deviation 1.says = '': has no word in it"),
        ('"dp is #"', '"# a *_9_b1"', "deviation 1.says = .*: has no word in it"),
        (LATER, '"soon"', "deviation 1.expires = 'soon': is not a date"),
        (LATER, '"2099-02-30"', "deviation 1.expires = '2099-02-30': is not a date"),
        (LATER, f"{LATER}T00:00:00", "deviation 1.expires"),
        (LATER, "7", "deviation 1.expires = 7"),
        (LATER, "9999-12-31", f"deviation 1.expires = '9999-12-31': is more than a year ahead, after {LATEST}; give"),
        ('owner = "o"', "", "deviation 1.*owner"),
        ('owner = "o"', 'owner = "o"\nmood = "x"', "deviation 1.mood = 'x': Deviation has no such field"),
        ('owner = "o"', 'owner = "o"\ntensors = ["wq", ""]', "deviation 1.tensors = '': is no name"),
        ('owner = "o"', 'owner = "o"\nversions = ["", "1"]', "deviation 1.versions = '': is no version"),
        ("[[deviation]]", "[deviation]", "deviation = {.*: is no list of tables"),
        ("[[deviation]]", "[[mood]]\n[[deviation]]", r"mood = \[{}\]: is not a table of this file"),
        ("[[deviation]]", "taken = [1]\n[[deviation]]", r"taken = \[1\]: is no list of tables"),
        ("[[deviation]]", "[[deviation", "deviations = .*: is not TOML"),
    ],
)
def test_a_faulty_entry_is_refused_for_its_fault(old: str, new: str, fault: str, tmp_path: Path) -> None:
    assert ENTRY.count(old) == 1
    file = written(tmp_path, ENTRY.replace(old, new))
    with pytest.raises(Refused, match=f"^({re.escape(str(file))}: )?{fault}") as caught:
        deviations.read(file)
    assert str(file) in str(caught.value)
    assert len(caught.value.refusals) == 1


@pytest.mark.parametrize("says", ["dp", "# is", "*ab*", "é́té"])
def test_the_words_of_a_deviation_may_have_two_letters(says: str, tmp_path: Path) -> None:
    assert deviations.load(written(tmp_path, ENTRY.replace("dp is #", says)))[0].says == says


def test_every_fault_of_a_file_is_reported_with_the_number_of_its_entry(tmp_path: Path) -> None:
    first, second = ENTRY.replace('"r"', '""'), ENTRY.replace('"o"', '""').replace(LATER, '"soon"')
    third = ENTRY.replace('owner = "o"', "mood = 1").replace('"r"', '""')
    silent = ENTRY.replace('says = "dp is #"\n', "").replace("tp2", "tp4")
    taken = '[[taken]]\nfile = "other.toml"\ncases = ["PAR-01[tp2]", "PAR-00[tp2]", "PAR-01[tp4]"]\n'
    faulty, missing = (taken.replace("other", each) for each in ("faulty", "missing"))
    other, faulty_one = written(tmp_path, ENTRY, "other.toml"), written(tmp_path, first, "faulty.toml")
    tables = f"mood = 1\n{ENTRY}{first}{second}{third}{silent}\n{taken}\n[[taken]]\nfile = 1\n{faulty}{missing}"
    file = written(tmp_path, tables)
    with pytest.raises(Refused) as caught:
        deviations.load(file)
    own = (
        "mood", "taken 1.cases", "taken 1.cases", "taken 2.file", "taken 2.cases", "deviation 2.reason",
        "deviation 3.owner", "deviation 3.expires", "deviation 4.reason", "deviation 4.mood", "deviation 4.owner",
    )  # fmt: skip
    expected = [f"{file}: {each}" for each in own] + [f"{faulty_one}: deviation 1.reason", "deviations", "deviations"]
    assert sorted(caught.value.fields) == sorted(expected)
    said = str(caught.value)
    assert f"deviations = '{tmp_path / 'missing.toml'}': cannot be read" in said
    assert "PAR-01[tp4] do not say what they forgive" in said
    assert f"is no entry of {other}" in said


@pytest.mark.parametrize(("number", "more"), [(1, ""), (3, ""), (4, " and 1 more"), (6, " and 3 more")])
def test_many_entries_without_words_are_one_fault_that_names_three_of_them(
    number: int, more: str, tmp_path: Path
) -> None:
    silent = ENTRY.replace('says = "dp is #"\n', "")
    file = written(tmp_path, ENTRY + "".join(silent.replace("tp2", f"tp{n}") for n in range(number)))
    assert len(deviations.read(file)) == number + 1
    named = ", ".join(f"PAR-01[tp{n}]" for n in range(min(number, 3)))
    with pytest.raises(Refused) as caught:
        deviations.load(file)
    (told,) = caught.value.refusals
    assert told.problem.startswith(f"{named}{more} do not say what they forgive")


def test_a_deviations_file_can_include_another_but_not_itself(tmp_path: Path) -> None:
    others = "".join(ENTRY.replace("tp2", case) for case in ("tp2", "tp4", "tp8"))
    written(tmp_path, others, "other.toml")
    taken = '[[taken]]\nfile = "{}"\ncases = ["PAR-01[tp8]", "PAR-01[tp2]"]\n'
    file = written(tmp_path, taken.format("other.toml") + ENTRY.replace("tp2", "own"))
    assert [each.case for each in deviations.read(file)] == ["tp2", "tp8", "own"]
    assert [each.case for each in deviations.read(file, taken=False)] == ["own"]
    every = written(tmp_path, taken.format("other.toml").replace('"PAR-01[tp8]", "PAR-01[tp2]"', '"*"'))
    assert [each.case for each in deviations.read(every)] == ["tp2", "tp4", "tp8"]
    (tmp_path / "below").mkdir()
    written(tmp_path / "below", others, "third.toml")
    written(tmp_path / "below", taken.format("third.toml"), "second.toml")
    through = written(tmp_path, taken.format("below/second.toml"))
    assert [each.case for each in deviations.read(through)] == ["tp2", "tp8"], "a file is looked for beside its taker"
    for name in ("d.toml", "../" + tmp_path.name + "/d.toml"):
        with pytest.raises(Refused, match=r"^.*: taken 1\.file = .*: takes entries from itself"):
            deviations.read(written(tmp_path, taken.format(name)))
    written(tmp_path, taken.format("d.toml"), "back.toml")
    with pytest.raises(Refused, match=r"takes entries from itself"):
        deviations.read(written(tmp_path, taken.format("back.toml")))
    with pytest.raises(Refused, match=r"missing\.toml': cannot be read: No such file or directory"):
        deviations.read(written(tmp_path, taken.format("missing.toml")))


@pytest.mark.parametrize(
    ("says", "tensors", "part", "forgiven"),
    [
        ("dp is #", (), DP, True), ("dp is 4", (), DP, True), ("dp is 5", (), DP, False), ("", (), DP, False),
        ("dp is #", ("wq",), DP, False), ("L2 error #", ("layers.1.wq",), WQ, True),
        ("L2 error #", ("layers.*.wk", "*.wq"), WQ, True), ("L2 error #", ("layers.2.*",), WQ, False),
        ("L2 error #", (), WQ, False), ("row error #", ("*",), WQ, False), ("dp is # and not 3", (), DP, False),
        ("rank #", (), Violation(words="rank nan"), True), ("rank #", (), Violation(words="rank #"), True),
        ("x is #", (), Violation(words="x is -1_000.5e-03"), True), ("x.y", (), Violation(words="x-y"), False),
    ],
)  # fmt: skip
def test_an_entry_forgives_exactly_the_words_and_tensors_that_it_names(
    says: str, tensors: tuple[str, ...], part: Violation, forgiven: bool
) -> None:
    entry = Deviation(id="A-01", case="*", reason="r", issue="i", owner="o", expires=LATER, says=says,
                      tensors=tensors)  # fmt: skip
    assert deviations.forgives(entry, part) == forgiven


@pytest.mark.parametrize(
    ("id", "case", "covered"),
    [
        ("A-01", "tp2", True),
        ("A-01", "tp22", True),
        ("A-01", "pp2", False),
        ("A-02", "tp2", False),
        ("A", "tp2", False),
    ],
)
def test_a_deviation_matches_cases_of_its_own_contract_only(id: str, case: str, covered: bool) -> None:
    entry = Deviation(
        id="A-01", case="tp*", reason="r", issue="i", owner="o", expires=LATER, tensors=("w[qk]", "*.up", "b")
    )
    assert deviations.covers(entry, Item(id=id, case=case)) == covered
    named = [Violation(words="w", tensor=name) for name in ("wk", "b")]
    assert deviations.unused(entry, [*named, Violation(words="x.up")]) == ["*.up"]
    assert deviations.unused(entry, []) == ["w[qk]", "*.up", "b"]

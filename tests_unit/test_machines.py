"""The machine as an axis: rows cover what they say, and a verdict that depends on the machine is found and named."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import _axes, machines
from benchmarks._axes import Axes, Level, Torch
from benchmarks._covering import covering, meetings, meetings_of
from contracts.harness.child_process import descendants
from contracts.spec.records import SCHEMA, Header, Item, Outcome, Plan, Result, Run, Subject

ROOT = Path(__file__).parents[1]

EPYC = "model name\t: AMD EPYC\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu sse4_1 avx avx2 fma\n"
XEON = (
    "model name\t: Intel Xeon\nvendor_id\t: GenuineIntel\n"
    "flags\t\t: sse4_1 avx avx2 fma avx512f avx512bw avx512dq avx512vl\n"
)
HERE = Torch(
    python="/here/python",
    version="2.13.0+cpu",
    capability="AVX2",
    mkl=True,
    onednn=True,
    build="MKL",
    built_for=None,
    cuda=None,
)
OLDER = replace(HERE, python="/older/python", version="2.11.0+cu130", built_for="13.0")
ALONE = (Level(name="one process", options=("--profile", "TOPO-02")),)


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=7), data=st.data())
def test_a_covering_array_has_every_pair_of_levels_and_begins_with_the_requested_rows(
    sizes: list[int], data: st.DataObject
) -> None:
    axes = {f"axis{at}": tuple(f"{at}{level}" for level in range(size)) for at, size in enumerate(sizes)}
    strength = data.draw(st.integers(1, 2))
    first = tuple(data.draw(st.sampled_from(levels)) for levels in axes.values())
    rows = covering(axes, [first], strength)
    assert rows[0] == first
    for names in itertools.combinations(range(len(sizes)), strength):
        met = {tuple(row[at] for at in names) for row in rows}
        assert met == set(itertools.product(*(list(axes.values())[at] for at in names)))
    assert len(set(rows)) == len(rows) <= max(1, len(meetings(axes, strength)))


def test_no_hypothesis_example_has_a_deadline() -> None:
    assert settings.default.deadline is None


def test_rows_that_cover_more_pairs_come_first() -> None:
    axes = {name: tuple("abcde"[:size]) for name, size in zip("stuvwxyz", (5, 3, 3, 2, 2, 2, 2, 3), strict=True)}
    rows, seen, gains = covering(axes), set(), []
    for row in rows:
        new = set(meetings_of(row, axes)) - seen
        seen |= new
        gains.append(len(new))
    assert gains[0] == 28  # eight axes are 28 pairs of axes
    assert gains == sorted(gains, reverse=True)
    assert len(rows) <= 20  # 15 is the least: five levels meet three


def _run(**outcomes: Outcome) -> Run:
    results = tuple(
        Result(id="TOPO-02", case=case.replace("_", "-"), outcome=outcome, words=f"{case} was {outcome}")
        for case, outcome in outcomes.items()
    )
    subject = Subject(name="a", version="1", origin="a", offers=frozenset(), layouts=frozenset())
    header = Header(
        schema=SCHEMA, suite="1", revision="r", profile="TOPO-02", subject=subject, assistants=(),
        started="2026-01-01T00:00:00+00:00", command=(), python="3", platform="p",
    )  # fmt: skip
    return Run(header=header, plan=Plan(items=tuple(result.item for result in results)), results=results)


PLAIN = _run(one="holds", two="not offered", three="violated")


def test_equal_outcomes_with_different_words_are_no_difference() -> None:
    again = replace(PLAIN, results=tuple(replace(result, words="in other words") for result in PLAIN.results))
    assert machines.compared(PLAIN, again) == ()


@pytest.mark.parametrize(
    ("here", "item", "plain", "became"),
    [
        (_run(one="broken", two="not offered", three="violated"), "one", "holds", "broken"),
        (_run(one="holds", two="not offered", three="holds"), "three", "violated", "holds"),
        (_run(one="holds", three="violated"), "two", "not offered", machines.MISSING),
        (_run(one="holds", two="not offered", three="violated", four="holds"), "four", machines.EXTRA, "holds"),
    ],
    ids=["worse", "better", "missing", "extra"],
)
def test_a_changed_a_missing_and_an_extra_item_are_found(here: Run, item: str, plain: str, became: str) -> None:
    (found,) = machines.compared(PLAIN, here)
    assert (found.id, found.case, found.plain, found.here, found.time) == ("TOPO-02", item, plain, became, False)
    assert found.words == ("" if became == machines.MISSING else f"{item} was {became}")


def test_a_row_that_judges_a_share_is_compared_with_that_share() -> None:
    wanted = [Item(id="TOPO-02", case="one"), Item(id="TOPO-02", case="three")]
    assert machines.compared(PLAIN, _run(one="holds", three="violated"), wanted) == ()
    (found,) = machines.compared(PLAIN, _run(one="holds"), wanted)
    assert (found.case, found.here) == ("three", machines.MISSING)
    (found,) = machines.compared(PLAIN, _run(one="holds", two="not offered", three="violated"), wanted)
    assert (found.case, found.plain) == ("two", machines.EXTRA)


def test_the_shares_of_all_rows_together_have_every_item_once() -> None:
    items = [Item(id="TOPO-02", case=str(number)) for number in range(100)]
    shares = [machines.share(items, turn, 6) for turn in range(3, 9)]
    assert sorted(each.case for share in shares for each in share) == sorted(each.case for each in items)
    assert machines.share(items[:20], 1, 6) == tuple(items[:20])


def test_slow_rows_judge_only_a_share_of_the_items(tmp_path: Path) -> None:
    one, four = Level(name="one", options=("--profile", "a")), Level(name="four", options=("--profile", "a", "--ranks"))
    load = (Level(name="none"), Level(name="8 busy", busy=8))
    every = {"sums": (Level(name="as is"), Level(name="Blocked")), "load": load, "judging": (one, four)}
    items = tuple(Item(id=id, case=str(case)) for id in ("BLK-03a", "TOPO-02") for case in range(90))
    run = replace(PLAIN, plan=replace(PLAIN.plan, items=items))

    def counts(*rows: tuple[str, str, str], whole: bool = False) -> list[int | None]:
        harness = machines.Harness(Axes(levels=every), tmp_path, 1e4, whole=whole)
        harness.plain = {"one": run, "four": run}
        planned = [harness._planned(dict(zip(every, row, strict=True)), harness.axes.of(row)) for row in rows]
        return [None if each is None else len({*each}) for each in planned]

    assert counts(("as is", "none", "one"), ("as is", "none", "four")) == [None, None]
    assert counts(("as is", "8 busy", "one"), ("Blocked", "8 busy", "four")) == [30, 15]
    assert counts(("Blocked", "none", "one"), ("Blocked", "none", "four")) == [90, 30]
    assert counts(("Blocked", "8 busy", "four"), whole=True) == [None]


def test_only_items_that_compute_sums_are_judged_in_another_summation_order() -> None:
    ids = ("BLK-03a", "COMP-01a", "TRAF-03", "PAR-01e", "TOPO-02", "TRAF-02c", "COMP-02a", "there-is-none")
    found = machines.with_sums(Item(id=id, case="one") for id in ids)
    assert [each.id for each in found] == ["BLK-03a", "COMP-01a", "TRAF-03", "PAR-01e"]  # run_block, train


@pytest.mark.parametrize(
    ("words", "time_ran_out"),
    [
        ("no answer within 300 s", True),
        ("Command '['python']' timed out after 240 seconds", True),
        ("all_reduce 3; rank 1 has issued none after 20 s: time ran out", True),
        ("rank 2 did not finish the call of test_law within 60 s", True),
        ("gave no answer in time (asked ablock)", True),
        ("rank 1 of 4 waited 4.1 s, the limit is 0.5 s: it was not back within 3 s more", True),
        ("gradient mixer.k_norm.weight differs: L2 error inf over 1e-12", False),
        ("within 1e-12 of it", False),
        ("the check raised KeyError: 'timeout_s'", False),
    ],
)
def test_a_difference_says_whether_time_ran_out(words: str, time_ran_out: bool) -> None:
    here = replace(PLAIN, results=(replace(PLAIN.results[0], outcome="broken", words=words), *PLAIN.results[1:]))
    (found,) = machines.compared(PLAIN, here)
    assert found.time == time_ran_out


def _axes_of(cpuinfo: str, torch: Torch = HERE, stack: str = "reference") -> Axes:
    return _axes.axes("cpu", _axes.cpu(cpuinfo), [torch, OLDER], stack=stack, judging=ALONE)


def test_settings_that_this_machine_has_are_varied_and_the_others_listed() -> None:
    epyc = _axes_of(EPYC)
    assert epyc.names["aten"] == ("as is", "default")
    assert epyc.names["onednn"] == ("as is", "SSE41")
    assert epyc.names["mkl"] == ("as is", "compatible")
    cards = {level.name: level for level in epyc.levels["torch"] if "RANKPROOF_CARD" in level.environment}
    assert epyc.names["torch"] == ("2.13.0+cpu", "2.11.0+cu130", *cards)
    assert [*cards] == ["2.11.0+cu130 without a card", "2.11.0+cu130 with an imitated card"]
    assert {each.python for each in cards.values()} == {"/older/python"}
    said = "\n".join(epyc.absent)
    for words in ("ATEN_CPU_CAPABILITY=avx512", "DNNL_MAX_CPU_ISA=AVX512_CORE:", "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
                  "torch 2.12.1: not installed here (make torch TORCH=2.12.1)"):  # fmt: skip
        assert words in said
    assert "torch 2.11.0" not in said
    xeon = _axes_of(XEON, replace(HERE, capability="AVX512"))
    assert xeon.names["aten"] == ("as is", "default", "avx2")
    assert xeon.names["onednn"] == ("as is", "SSE41", "AVX2")
    assert xeon.names["mkl"] == ("as is", "compatible", "SSE4_2")
    assert "avx512:" not in "\n".join(xeon.absent)
    bare = _axes_of("Features\t: fp asimd\n", replace(HERE, capability="DEFAULT", mkl=False, onednn=False))
    assert {bare.names[axis] for axis in ("aten", "onednn", "mkl")} == {("as is",)}
    assert "built without MKL" in "\n".join(bare.absent)
    assert "built without oneDNN" in "\n".join(bare.absent)


def test_other_summation_orders_are_tried_for_the_reference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_axes, "REORDERED", "contracts.stacks.there_is_none")
    assert "contracts.stacks.there_is_none is not there" in "\n".join(_axes_of(EPYC).absent)
    monkeypatch.setattr(_axes, "REORDERED", "contracts.stacks.reference")
    assert _axes_of(EPYC).names["sums"] == ("as is", *_axes.SUMS)
    assert "not of another" in "\n".join(_axes_of(EPYC, stack="another").absent)


def test_every_summation_order_that_is_tried_exists() -> None:
    reordered = pytest.importorskip("contracts.stacks.reordered")
    assert {name for name in _axes.SUMS if not hasattr(reordered, name)} == set()


def test_pairs_that_the_time_budget_left_out_are_listed() -> None:
    axes = {"a": ("1", "2"), "b": ("x", "y")}
    left = machines.left_uncovered(axes, [("1", "x"), ("2", "y")], 2)
    assert [machines.said(each, axes) for each in left] == ["a 1 × b y", "a 2 × b x"]
    assert machines.left_uncovered(axes, [("1", "x"), ("2", "y")], 1) == []


@pytest.mark.parametrize(("cpuinfo", "meetings"), [(EPYC, 4), (XEON, 6)], ids=["epyc", "xeon"])
def test_a_budget_without_room_judges_nothing_and_is_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cpuinfo: str, meetings: int
) -> None:
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python))
    monkeypatch.setattr(machines, "cpu", lambda: _axes.cpu(cpuinfo))
    assert machines.main(["--budget", "0", "--profile", "TOPO-02", "--axes", "aten,mkl", "--out", str(tmp_path)]) == 3
    told = json.loads((tmp_path / "machines.json").read_text())
    assert told["rows"] == []
    assert len(told["left"]) == meetings
    assert "  aten default × mkl compatible" in capsys.readouterr().out.splitlines()


def test_requested_rows_are_judged_after_the_plain_ones_of_their_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [("as is", "one"), ("as is", "four"), ("default", "one"), ("default", "four"), ("avx2", "four")]
    assert machines._chosen((), rows, 1) == {1, 2, 3, 4, 5}
    assert machines._chosen((4,), rows, 1) == {2, 4}
    assert machines._chosen((3, 5), rows, 1) == {1, 2, 3, 5}
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python))
    assert machines.main(["--axes", "aten", "--profile", "TOPO-02", "--rows", "2,9,11", "--out", str(tmp_path)]) == 3
    assert "--rows 9,11: there are rows 1 to 2, as --list shows them" in capsys.readouterr().out


def test_a_failed_baseline_row_skips_only_the_rows_compared_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [("as is", "one"), ("as is", "four"), ("default", "one"), ("default", "four")]
    levels = {axis: tuple(Level(name=name) for name in dict.fromkeys(each)) for axis, each in
              zip(("aten", "judging"), zip(*rows, strict=True), strict=True)}  # fmt: skip
    harness = machines.Harness(Axes(levels=levels, absent=()), tmp_path, 1e4)
    ran = []

    def run(number: int, row: tuple[str, ...]) -> machines.Done:
        ran.append(number)
        if number != 1:
            harness.plain[row[1]] = PLAIN
        at = dict(zip(levels, row, strict=True))
        return machines.Done(number=number, row=at, command=(), seconds=1.0, problem="gone" if number == 1 else "")

    monkeypatch.setattr(harness, "run", run)
    assert machines._run(harness, rows, {1, 2, 3, 4}) == [rows[2]]
    assert ran == [1, 2, 4]


def test_without_a_device_the_axes_of_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python))
    assert machines.main(["--device", "cuda", "--list"]) == 3
    assert "torch sees no CUDA device" in capsys.readouterr().out
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python, cuda="an H200"))
    assert machines.main(["--device", "cuda", "--list"]) == 0
    assert "cublas :4096:8" in capsys.readouterr().out


def test_busy_processes_are_as_many_as_asked_and_none_after_an_error() -> None:
    before = descendants(os.getpid())

    def row() -> None:
        with machines.beside(3):
            assert len(descendants(os.getpid()) - before) == 3
            raise KeyError("of the row")

    with pytest.raises(KeyError):
        row()
    assert not descendants(os.getpid()) - before


def test_busy_processes_end_with_a_harness_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal\nfrom benchmarks import machines\n"
        "with machines.beside(1):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # It holds standard output: the read comes to an end when it does.
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -9


NEEDS_AVX = """
import os
from dataclasses import replace
from contracts.stacks.reference.stack import Reference

class NeedsAvx(Reference):
    def topology(self, degrees, world, layout):
        found = super().topology(degrees, world, layout)
        slow = os.environ.get("ATEN_CPU_CAPABILITY") == "default"
        return replace(found, dp=2 * found.dp) if slow and degrees.pp == 13 else found
"""


def _judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, dict[str, Any]]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")  # nothing of an axis is inherited
    code = machines.main(["--axes", "aten", "--jobs", "1", "--out", str(tmp_path / "out"), *words])
    return code, json.loads((tmp_path / "out/machines.json").read_text())


@pytest.mark.slow
def test_a_stack_whose_verdict_depends_on_the_machine_is_found_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python))
    (tmp_path / "needs_avx.py").write_text(NEEDS_AVX)
    code, told = _judged(tmp_path, monkeypatch, "--stack", "needs_avx:NeedsAvx", "--profile", "TOPO-02")
    assert code == 1, capsys.readouterr().out
    plain, other = told["rows"]
    assert (plain["row"]["aten"], plain["differences"], plain["word"]) == ("as is", [], "conformant")
    assert (other["row"]["aten"], other["word"], other["items"]) == ("default", "violated", plain["items"])
    assert {(each["plain"], each["here"]) for each in other["differences"]} == {("holds", "violated")}
    assert "TOPO-02[pp13-on-52]" in {f"{each['id']}[{each['case']}]" for each in other["differences"]}
    assert "row 2 (one process, aten default): TOPO-02[pp13-on-52] is violated, plain holds" in capsys.readouterr().out


@pytest.mark.slow
def test_the_reference_is_the_same_on_two_rows_with_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    code, told = _judged(tmp_path, monkeypatch, "--profile", "BLK-04a")
    assert code == 0, capsys.readouterr().out
    assert {(row["word"], bool(row["items"]), len(row["differences"])) for row in told["rows"]} == {
        ("conformant", True, 0)
    }
    assert told["torch"][0]["build"]


@pytest.mark.slow
def test_a_row_that_cannot_be_judged_is_named_and_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "torch_of", lambda python: replace(HERE, python=python))
    code, told = _judged(tmp_path, monkeypatch, "--stack", "there_is_none:Stack", "--profile", "TOPO-02")
    assert code == 3
    assert "there_is_none" in told["rows"][0]["problem"]
    assert "there is nothing to hold the others of one process against" in capsys.readouterr().out

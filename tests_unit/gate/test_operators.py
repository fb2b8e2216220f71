"""Changes of the reference's source: where operators apply, and what becomes of a change."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from contracts.court import profiles
from contracts.harness.commands._operators import summary
from contracts.harness.operators import changes, trials
from contracts.harness.operators import reach as reaching
from contracts.harness.operators.cells import CELLS, LIKELY, cells, likely
from contracts.harness.operators.changes import Change
from contracts.harness.operators.reach import Reach
from contracts.harness.operators.trials import FATES, Trial
from contracts.spec import Refused
from tests_unit._parties.law import LAW
from tests_unit._parties.running import invoked


@pytest.fixture(scope="module")
def every() -> list[Change]:
    return [change for file in changes.files() for change in changes.of_file(file)]


def test_each_mutation_operator_applies_somewhere_and_change_ids_are_unique(every: list[Change]) -> None:
    assert {each.operator for each in every} == changes.OPERATORS.keys()
    assert len({each.id for each in every}) == len(every) > 1000
    assert changes.named(every[7].id) == every[7]
    with pytest.raises(Refused, match="is none of this source"):
        changes.named("off-by-one@optim/schedule.py:1:0")


def test_a_planted_change_edits_one_span_of_one_file(every: list[Change]) -> None:
    for each in every[::50]:
        source, made = (changes.ROOT / each.file).read_bytes(), each.made().encode()
        assert source[each.span[0] : each.span[1]].decode() == each.was != each.now
        assert made[: each.span[0]] == source[: each.span[0]]
        assert made.endswith(source[each.span[1] :])
        compile(made, each.file, "exec")


def test_raise_assert_and_import_lines_are_never_changed(every: list[Change]) -> None:
    lines = {file: (changes.ROOT / file).read_text(encoding="utf-8").splitlines() for file in changes.files()}
    said = [each.id for each in every if re.match(r"\s*(raise|assert|import|from) ", lines[each.file][each.line - 1])]
    assert said == []


def test_changes_are_drawn_from_every_file_and_a_longer_draw_extends_a_shorter_one() -> None:
    few, more = ([each.id for each in itertools.islice(changes.drawn(3), count)] for count in (40, 120))
    assert more[:40] == few
    assert len({id.partition("@")[2].partition(":")[0] for id in few}) == 40
    assert few != [each.id for each in itertools.islice(changes.drawn(4), 40)]
    assert {each.file for each in changes.drawn(3, only=("optim/",))} == {"optim/optimizer.py", "optim/schedule.py"}


def test_every_change_declared_equivalent_still_exists_and_has_a_reason(every: list[Change]) -> None:
    assert [each for each in changes.equivalents() if not any(each.covers(change) for change in every)] == []
    assert [each for each in changes.equivalents() if len(each.reason.split()) < 5] == []


def test_every_file_has_cases_of_two_ranks_that_exist_in_the_law() -> None:
    found = {item for of in CELLS.values() for item in of}
    plan = profiles.plan(LAW, ",".join(sorted(found)))
    assert {str(item) for item in plan.items} == found
    assert {LAW.contracts[item.id].ranks(item.case) for item in plan.items} == {2}
    assert [begins for begins in CELLS if not any(file.startswith(begins) for file in changes.files())] == []
    assert cells("parallel/fsdp.py")[0] == CELLS["parallel/fsdp"][0]
    assert set(CELLS[""]) <= set(cells("data.py"))


def test_every_file_has_likely_contracts_of_one_process() -> None:
    ids = {id for of in LIKELY.values() for id in of.split()}
    assert ids <= {each.id for each in LAW.contracts.values() if each.tier == "unit"}
    assert [begins for begins in LIKELY if not any(file.startswith(begins) for file in changes.files())] == []
    assert likely("parallel/mesh.py")[0] == "TOPO-05b"
    reach = reaching.likely(LAW)
    for change in changes.drawn(1, ("optim/schedule.py", "stack.py")):
        assert {each.id for each in reach.of(change)} == {*likely(change.file)}


def test_code_under_main_is_not_counted_as_imported(every: list[Change]) -> None:
    assert "answers/cold_compile.py" in {each.file for each in every if each.scope == "__main__"}


_TRY = """
import json, sys, torch
from dataclasses import asdict
from contracts.harness.operators import changes, trials
from contracts.harness.operators.reach import Reach
from contracts.harness.families import read_checks
read_checks()
torch.set_num_threads(1)
items = {"OPT-05b[cosine]": 1.0}
lines = {"optim/schedule.py": frozenset(range(1, 100))}
reach = Reach(content="", seconds=items, lines=dict.fromkeys(items, lines))
for each in json.load(sys.stdin):
    change = next(one for one in changes.of_file("optim/schedule.py") if (one.was, one.now) == tuple(each))
    print(json.dumps(asdict(trials.trial(change, reach))))
    assert not any(name.startswith("contracts.stacks.reference") for name in sys.modules)
"""


def test_a_recorded_kill_is_valid_while_its_files_are_unchanged(tmp_path: Path) -> None:
    id = "lost-clone@data.py:1:0"
    stands = Trial(content="before", change=id, fate="killed", by="OPT-05b[cosine]", basis=reaching.basis("OPT-05b"))
    journal = tmp_path / trials.JOURNAL
    for told, known in (
        (stands, True), (replace(stands, basis="of other files"), False), (replace(stands, basis=""), False),
        (replace(stands, fate="survived", by="", basis=""), False), (replace(stands, content="now", basis=""), True),
    ):  # fmt: skip
        journal.write_text(json.dumps(asdict(told)) + "\n", encoding="utf-8")
        assert (id in trials.journal(tmp_path, "now")) == known, told


def test_a_contract_depends_on_the_check_files_that_its_file_imports() -> None:
    file = Path(LAW.contracts["OPT-05b"].check.__code__.co_filename)
    assert "training_run.py" in {path.name for path in reaching._checks_behind(file)}
    assert reaching.basis("OPT-05b") == reaching.basis("OPT-05c") != reaching.basis("OPT-04a")
    assert reaching.basis("NOT-01") == ""


def test_a_command_that_forks_for_a_change_has_imported_no_stack() -> None:
    said = "import sys; from contracts.harness.families import read_checks; from contracts.harness.cli import main"
    said += "; read_checks(); main(['selftest', '-h'], standalone_mode=False)"
    said += "; print(*(name for name in sys.modules if name.startswith('contracts.stacks.reference')), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=600)
    assert done.stderr.strip() == ""


def test_a_change_is_killed_by_name_and_the_files_stay_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = (changes.ROOT / "optim/schedule.py").read_bytes()
    lost = next(each for each in changes.of_file("optim/schedule.py") if each.was.startswith("optim.lr * step"))
    done = subprocess.run([sys.executable, "-c", _TRY], input=json.dumps([[lost.was, lost.now]]), text=True, check=True,
                          capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)  # fmt: skip
    told = Trial(**json.loads(done.stdout))
    assert (told.fate, told.by.partition("[")[0]) == ("killed", "OPT-05b")
    assert "rate" in told.words
    assert (changes.ROOT / "optim/schedule.py").read_bytes() == source


@pytest.mark.parametrize(("rows", "planned", "fate"), [
    ([("PAT-01[a]", "holds"), ("PAT-02[a]", "broken"), ("PAT-03[a]", "violated")], 9, "killed"),
    ([("PAT-01[a]", "holds"), ("PAT-02[a]", "broken")], 2, "crashed"),
    ([("PAT-01[a]", "holds")], 2, "crashed"),
    ([("PAT-01[a]", "holds"), ("PAT-02[a]", "holds")], 2, "survived"),
])  # fmt: skip
def test_a_violation_outweighs_an_error_and_a_hang_counts_as_an_error(
    rows: list[tuple[str, str]], planned: int, fate: str
) -> None:
    given = [{"item": item, "outcome": outcome, "words": "it is", "seconds": 1.0} for item, outcome in rows]
    assert trials._fate(given, planned)["fate"] == fate


def test_ranks_import_the_changed_source(tmp_path: Path) -> None:
    trials.shadow(tmp_path / "changed", next(each for each in changes.of_file("parallel/fsdp.py")))
    code = "from rankproof import suite; suite.load_alone(); import contracts; print(contracts.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "changed")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "changed/contracts/__init__.py"), done.stderr


def test_ranks_count_as_catching_a_change_only_if_they_hold_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    change = next(each for each in changes.of_file("parallel/fsdp.py"))
    reach = Reach(content="", seconds={}, lines={})
    said = {"PAR-10[fsdp2]": {"fate": "crashed", "by": "PAR-10[fsdp2]", "words": "no port"}}
    red = {"fate": "killed", "by": "PAR-10[fsdp2]", "words": "it is"}
    monkeypatch.setattr(trials, "_by_ranks", lambda _, __, profile: said.get(profile, red))
    monkeypatch.setattr(trials, "_in_a_fork", lambda *_: {"fate": "survived"})
    with pytest.raises(Refused, match=r"PAR-10\[fsdp2\] does not hold on the unchanged reference: no port"):
        trials.trial(change, reach, ranks=2)
    said["PAR-10[fsdp2]"] = {"fate": "survived"}
    assert trials.trial(change, reach, ranks=2).fate == "killed"


@pytest.mark.parametrize("runs", [False, True])
def test_a_change_that_no_test_executes_is_unreached_and_otherwise_may_survive(
    monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    change = next(each for each in changes.of_file("parallel/fsdp.py") if each.scope and not each.is_target)

    def held(folder: Path, *_: object) -> dict[str, str]:
        source = (folder / "contracts/stacks/reference" / change.file).read_text(encoding="utf-8")
        if (mark := re.search(r"open\('([^']*)', 'a'\).close\(\)", source)) and runs:
            Path(mark[1]).touch()
        return {"fate": "survived"}

    monkeypatch.setattr(trials, "_by_ranks", held)
    monkeypatch.setattr(trials, "_in_a_fork", lambda *_: {"fate": "survived"})
    told = trials.trial(change, Reach(content="", seconds={}, lines={}), ranks=2)
    assert told.fate == ("survived" if runs else "unreached")


def test_a_change_that_also_records_its_execution_still_compiles(every: list[Change]) -> None:
    for each in every[::20]:
        compile(each.made(Path("a mark")), each.file, "exec")


def test_lines_that_refuse_input_or_run_on_cuda_are_not_changed(every: list[Change]) -> None:
    assert "is a foreign file" in (changes.ROOT / "checkpoint/manifest.py").read_text(encoding="utf-8")
    assert not any("is a foreign file" in each.was for each in every)
    assert "torch.cuda.get_rng_state(device)" in (changes.ROOT / "checkpoint/rng_state.py").read_text(encoding="utf-8")
    assert not any("torch.cuda.get_rng_state" in each.was for each in every)


def test_a_journal_of_another_version_of_the_source_is_refused(tmp_path: Path) -> None:
    rows = [{"content": content, "change": "a@b:1:0", "fate": "killed"} for content in ("old", "new")]
    text = "".join(f"{json.dumps(row)}\n" for row in rows) + '{"content": "new", "cha'  # cut off by a kill
    (tmp_path / trials.JOURNAL).write_text(text, encoding="utf-8")
    assert trials.journal(tmp_path, "newest") == {}
    assert [each.fate for each in trials.journal(tmp_path, "new").values()] == ["killed"]


def test_the_summary_lists_surviving_changes_with_their_source_line(
    every: list[Change],
) -> None:
    fates = [*FATES, "killed", "killed"]
    found = [Trial(content="", change=each.id, fate=fate, was=each.was, now=each.now, tried=3)
             for each, fate in zip(every, fates, strict=False)]  # fmt: skip
    text = summary(found)
    assert f"survived 3 cases: {found[2].change}" in text
    assert "3 killed by a contract, 1 ended in an error, 1 survived, 1 equivalent, 1 in lines" in text
    assert "80 % of 5 noticed" in text


def test_changes_drawn_for_a_contract_are_in_the_functions_it_guards() -> None:
    places = {(each.file, each.scope) for each in changes.drawn(0, ("MOE-01e",))}
    assert ("model/blocks/moe.py", "Router.weigh") in places
    assert {file for file, _ in places} == {"model/blocks/moe.py"}
    assert {scope.partition(".")[0] for _, scope in places} == {"Router"}


def test_options_that_do_not_fit_operators_are_refused() -> None:
    told = invoked("selftest", "--operators", "3", "--sample", "--jobs", "2", code=2)
    assert "--sample = True: does not go with --operators" in told.output
    assert "--jobs" in told.output
    told = invoked("selftest", "--operators", "3", "--only", "optim/,optm/,lost-clone@no.py", code=2)
    assert "--only = 'optm/': begins no change" in told.output
    assert "--only = 'lost-clone@no.py': begins no change" in told.output
    assert "--time = 3.0: limits nothing without --operators" in invoked("selftest", "--time", "3").output
    assert "--likely = True: is about no change" in invoked("selftest", "--likely").output

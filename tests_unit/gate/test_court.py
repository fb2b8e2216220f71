"""Bad stacks before the court: whatever goes wrong with a party is told apart from a promise that it breaks.

Each row is one run of the command, with the verdict it deserves.
"""

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.court import record, report
from contracts.court.verdict import verdict
from contracts.harness.gate import today
from contracts.spec.records import EXIT_CODES, Word
from tests_unit._parties.running import BAD, ROOT, Done, printed, side_by_side

USAGE = 2
GARBAGE = shlex.join([sys.executable, str(ROOT / "tests_unit/_parties/garbage.py")])


@dataclass(frozen=True, kw_only=True)
class Fails:
    """What is put before the court, the exit code, and words that must be said."""

    stack: str
    exit: int
    says: str
    profile: str = "PAT-01"
    seconds: float = 60


def _is(word: Word) -> int:
    return EXIT_CODES[word]


FAILS: dict[str, Fails] = {
    # before it can be asked: nothing was judged, and nothing is written
    "crashes-at-import": Fails(stack="tests_unit._parties.crashing:It", exit=_is("incomplete"),
                               says="raised OSError at import: libtorch_cuda.so: undefined symbol"),
    "leaves-at-import": Fails(stack="tests_unit._parties.leaving:It", exit=_is("incomplete"),
                              says="raised SystemExit at import"),
    "ends-its-process-at-import": Fails(stack="tests_unit._parties.ending:It", exit=_is("broken"),
                                        says="ended with exit code 0 before there was a verdict"),
    "cannot-be-built": Fails(stack=f"{BAD}:CannotBeBuilt", exit=_is("incomplete"),
                             says="cannot be built: RuntimeError: no driver on this machine"),
    "hangs-when-built": Fails(stack=f"{BAD}:HangsWhenBuilt", exit=_is("incomplete"), seconds=0.5,
                              says="could not be loaded within 0.5 s"),
    "leaves-when-built": Fails(stack=f"{BAD}:LeavesWhenBuilt", exit=_is("incomplete"), says="SystemExit"),
    "offers-a-list": Fails(stack=f"{BAD}:OffersAList", exit=USAGE, says="bad:OffersAList.offers = ['blocks']"),
    "offers-what-nobody-asks": Fails(stack=f"{BAD}:OffersWhatNobodyAsks", exit=USAGE, says="is not a question"),
    "has-no-name": Fails(stack=f"{BAD}:HasNoName", exit=USAGE, says=".name = '': is empty"),
    "is-no-stack": Fails(stack=f"{BAD}:IsNoStack", exit=USAGE, says="it has no name, version, offers, layouts, labels"),
    "prints-garbage-at-hello": Fails(stack="launched:echo hello", exit=_is("incomplete"),
                                     says="printed something else than a reply"),
    # when it is asked
    "raises-on-everything": Fails(stack=f"{BAD}:RaisesOnEverything", exit=_is("broken"), profile="PAT-01,TOPO-02",
                                  says="raised ZeroDivisionError on topology"),
    "claims-what-it-lacks": Fails(stack=f"{BAD}:ClaimsWhatItLacks", exit=_is("broken"),
                                  says="raised AttributeError on blocks"),
    "declines-everything": Fails(stack=f"{BAD}:DeclinesEverything", exit=_is("violated"), profile="PAT-01,TOPO-02",
                                 says="bad offers blocks and declined each of its"),
    "claims-nothing": Fails(stack=f"{BAD}:ClaimsNothing", exit=_is("nothing ran"), says="does not offer blocks"),
    "answers-nan": Fails(stack=f"{BAD}:AnswersNan", exit=_is("broken"), profile="NAME-01",
                         says="which is not a Recipe"),
    "answers-none": Fails(stack=f"{BAD}:AnswersNone", exit=_is("broken"), says="answered blocks with None"),
    "answers-text": Fails(stack=f"{BAD}:AnswersText", exit=_is("broken"), says="answered blocks with 'ablock"),
    "nests-wrongly": Fails(stack=f"{BAD}:NestsWrongly", exit=_is("broken"), says="answered blocks with (('ablock'"),
    "answers-a-type-of-its-own": Fails(stack=f"{BAD}:AnswersATypeOfItsOwn", exit=_is("broken"), profile="TOPO-02",
                                       says="which is not a Topology"),
    "hangs": Fails(stack=f"{BAD}:Hangs", exit=_is("broken"), profile="PAT-01[nam56r]", seconds=0.5,
                   says="no answer within 0.5 s"),
    "retries-for-ever": Fails(stack=f"{BAD}:RetriesForEver", exit=_is("broken"), profile="PAT-01[nam56r]", seconds=0.5,
                              says="no answer within 0.5 s"),
    "times-out-itself": Fails(stack=f"{BAD}:TimesOutItself", exit=_is("broken"),
                              says="raised TimeoutError on blocks"),
    "asserts-itself": Fails(stack=f"{BAD}:AssertsItself", exit=_is("broken"),
                            says="raised AssertionError on blocks"),
    "leaves-when-asked": Fails(stack=f"{BAD}:LeavesWhenAsked", exit=_is("broken"), says="raised SystemExit on blocks"),
    "skips-when-asked": Fails(stack=f"{BAD}:SkipsWhenAsked", exit=_is("broken"), says="raised Skipped on blocks"),
    "ends-the-session": Fails(stack=f"{BAD}:EndsTheSession", exit=_is("broken"), says="raised Exit on blocks"),
    "interrupts": Fails(stack=f"{BAD}:Interrupts", exit=_is("broken"), says="the run ended early"),
    "ends-its-process": Fails(stack=f"{BAD}:EndsItsProcess", exit=_is("broken"),
                              says="ended with exit code 0 before there was a verdict"),
    "crashes-natively": Fails(stack=f"{BAD}:CrashesNatively", exit=_is("broken"), says="ended with SIGSEGV"),
    "prints-garbage": Fails(stack=f"launched:{GARBAGE}", exit=_is("broken"), profile="PAT-01[nam56r]",
                            says="printed something else than a reply"),
    # the controls: a promise that is really broken, and a stack that breaks none
    "breaks-a-promise": Fails(stack=f"{BAD}:ForgetsPipeline", exit=_is("violated"), profile="TOPO-02", says="dp is"),
    "does-not-claim": Fails(stack=f"{BAD}:DoesNotClaim", exit=0, says="works, but is not in offers: stages"),
    "prints": Fails(stack=f"{BAD}:Prints", exit=0, says="CONFORMANT"),
    "is-right": Fails(stack=f"{BAD}:RightAndHonest", exit=0, profile="PAT-01,TOPO-02", says="CONFORMANT"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("court")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Done]:
    """Every bad stack, once."""
    return side_by_side(
        {
            name: ("check", "--stack", fails.stack, "--profile", fails.profile, "--with", "none",
                   "--deadline", fails.seconds, "--report", "out")
            for name, fails in FAILS.items()
        },
        folder,
    )  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_each_bad_stack_gets_its_expected_exit_code_and_words(name: str, runs: dict[str, Done]) -> None:
    expected, done = FAILS[name], runs[name]
    assert done.returncode == expected.exit, f"exit code {done.returncode}; said: {printed(done)[-600:]}"
    assert expected.says in printed(done)


@pytest.mark.parametrize("name", FAILS)
def test_no_bad_stack_makes_rankproof_print_a_traceback(name: str, runs: dict[str, Done]) -> None:
    said = runs[name].stdout + runs[name].stderr
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize("name", FAILS)
def test_a_bad_stack_leaves_a_complete_record_or_none(name: str, runs: dict[str, Done], folder: Path) -> None:
    out = folder / name / "out"
    if not (out / "run.jsonl").exists():
        written = sorted(path.name for path in out.glob("*")) if out.exists() else []
        part = ["run.jsonl.part"]
        shown = sorted([*report.FILES, *part])
        assert written in ([], part, ["output.log", *part], shown, ["output.log", *shown])
        if "verdict.json" in written:  # what was found so far
            assert json.loads((out / "verdict.json").read_text())["word"] == "incomplete"
        assert runs[name].returncode in (USAGE, 3, 4)
        return
    run, footer = record.load(out)
    judged = verdict(run, today())
    assert judged.exit_code == footer.exit_code == runs[name].returncode
    assert {result.item for result in judged.results} == set(run.plan.items)
    assert not list(out.glob("*.part"))


def test_a_question_that_works_but_is_not_in_offers_is_reported(runs: dict[str, Done]) -> None:
    assert re.search(r"works, but is not in offers: stages \(PAT-08\[[\w-]+\] holds\)", runs["does-not-claim"].stdout)


def test_a_stacks_prints_cannot_be_taken_for_the_verdict(runs: dict[str, Done], folder: Path) -> None:
    assert "\nHolds: " in runs["prints"].stdout
    assert "NCCL INFO" not in runs["prints"].stdout + runs["prints"].stderr
    assert "NCCL INFO" in (folder / "prints/out/output.log").read_text()

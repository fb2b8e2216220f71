"""One case of one contract, judged: the outcome, the words, whose lack it is, and what a mutant's fate is."""

import importlib.util
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.contract import LAW, Contract, Mutant
from contracts.court.judge import NO_TORCH, fate_of, judge, remedy_for, try_mutant, violations_of
from contracts.court.party import Broken
from contracts.harness.families import read_checks
from contracts.spec import (
    MOST_REFUSALS,
    Abilities,
    Absence,
    Lack,
    Lane,
    NotOffered,
    Recipe,
    Refusal,
    Refused,
    Stack,
    Unreachable,
    codec,
)
from contracts.spec.devices import Started, StartOptions
from contracts.spec.records import Fate, Outcome, Result, Violation
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import reply
from tests_unit._parties import bad

ANSWERED = {"blocks": f"reference {Reference.version} (unpatched)"}


def _contract(check: object, **cases: tuple[object, ...]) -> Contract:
    return Contract(id="T-01", check=check, asks=("blocks",), cases=cases or {"only": ()}, source="here", tier="unit")  # type: ignore[arg-type]


def test_a_check_that_asks_no_question_is_broken() -> None:
    def returns_at_once(stack: Stack) -> None:
        return  # where a skip was meant

    def looks_and_does_not_ask(stack: Stack) -> None:
        assert callable(stack.blocks)

    for check in (returns_at_once, looks_and_does_not_ask):
        result = judge(_contract(check), "only", Reference())
        assert (result.outcome, result.words) == ("broken", "the check asked no question, so it judged nothing")


def test_a_refusal_is_a_violation_only_if_the_stack_gave_it() -> None:
    def asks_for_a_legal_pattern(stack: Stack) -> None:
        stack.blocks("AXE", 52)

    def builds_an_illegal_value(stack: Stack) -> None:
        stack.blocks("AEME", 52)
        Lane(mode="author_dp", nodes=2)

    assert judge(_contract(asks_for_a_legal_pattern), "only", Reference()).outcome == "violated"
    result = judge(_contract(builds_an_illegal_value), "only", Reference())
    assert result.outcome == "broken"
    assert result.words.startswith("the check itself could not be carried out: rendezvous = None")
    assert result.violations == ()


@pytest.mark.parametrize("ask", ["stages", "recall"])
def test_a_check_that_asks_beyond_its_contract_is_broken(ask: str) -> None:
    asked = ("stages",) * (ask == "recall") + ("AEME", 52, 2)
    result = judge(_contract(lambda stack: getattr(stack, ask)(*asked)), "only", Reference())
    assert (result.outcome, result.words) == ("broken", "the check asks 'stages', which its contract does not list")


def _asks(stack: Any) -> None:
    stack.blocks("A", 1)


@pytest.mark.parametrize(
    ("error", "outcome", "words", "lack"),
    [
        (
            Unreachable("it does not answer"),
            "broken",
            "reference could not be asked for blocks: it does not answer",
            None,
        ),
        (NotOffered("it has none", lack="device"), "not offered", "it has none", "device"),
    ],
)
def test_a_stack_that_cannot_be_asked_is_broken_and_a_declined_case_says_who_lacks_it(
    error: Exception, outcome: Outcome, words: str, lack: Lack | None
) -> None:
    raising = type("Raising", (Reference,), {"blocks": bad.raises(error)})
    result = judge(_contract(_asks), "only", raising())
    assert (result.outcome, result.words, result.lack) == (outcome, words, lack)


class _Older(Reference):
    """Its training command had no options beside its recipe."""

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int) -> Started:  # type: ignore[override]
        return Started(exit_code=0, steps=steps, words="")


class _Newer(Reference):
    def started(self, *arguments: Any) -> Started:
        return Started(exit_code=len(arguments), steps=3, words="")


SHORT = Recipe(name="r", family="f", pattern="A", depth=1, hidden=8, ffn_hidden=8, heads=1, kv_groups=1, seq_length=8)
GIVEN: dict[str, tuple[StartOptions, ...]] = {
    "none": (), "plain": (StartOptions(),), "resumed": (StartOptions(resume=True),)
}  # fmt: skip


def _starts(stack: Any, *options: StartOptions) -> None:
    ended = stack.started(SHORT, {}, 3, *options)
    assert ended.steps == 3
    assert ended.exit_code == 4 * isinstance(stack.subject, _Newer), "it gets all that the question has"


def test_a_parameter_that_was_added_later_is_given_only_to_an_answer_that_takes_it() -> None:
    contract = replace(_contract(_starts, **GIVEN), asks=("started",))
    older, newer = ([judge(contract, case, stack) for case in GIVEN] for stack in (_Older(), _Newer()))
    assert [each.outcome for each in newer] == ["holds"] * 3, newer
    assert [each.outcome for each in older] == ["holds", "holds", "not offered"], older
    words = "reference: its started takes no `options`, which this case gives: add the parameter"
    assert (older[2].words, older[2].lack) == (words, "adapter")
    given = codec.encode({"recipe": SHORT, "environment": {}, "steps": 3, "options": StartOptions(resume=True)})
    asked = {"protocol": "rankproof/1", "id": 1, "question": "started", "arguments": given}
    assert reply(_Older(), codec.dumps(asked))["not_offered"] == words


def test_a_command_may_refuse_to_start_for_no_steps_if_it_says_so() -> None:
    read_checks("CKPT-01l")
    contract = LAW.contracts["CKPT-01l"]
    outcomes = []
    for words in ("ValueError: max_steps must be positive, got 0", "0 iterations are too few", "error", "    step 0"):
        ended = Started(exit_code=2, steps=0, words=f"a.py\n{words}\n")
        refuses = type("Refuses", (Reference,), {"started": lambda *_, ended=ended: ended})
        outcomes.append(judge(contract, "no-step", refuses()).outcome)
    assert outcomes == ["holds", "holds", "violated", "violated"]


class _Counts(Reference):
    """Says that it repeats itself, and counts how often it is asked."""

    repeats = frozenset({"blocks"})

    def __init__(self) -> None:
        self.asked = 0

    def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
        self.asked += 1
        return super().blocks(pattern, depth)


class _AsksNobodyTwice(_Counts):
    """Of the same kind, and another party."""


class _CountsAll(_Counts):
    """Says of nothing that it would repeat it."""

    repeats = frozenset()


def _asks_twice(stack: Any, depth: int) -> None:
    assert stack.blocks("AEM", depth) == stack.blocks("AEM", depth)


def _asks_and_recalls(stack: Any, depth: int) -> None:
    assert stack.blocks("AEM", depth) == stack.recall("blocks", "AEM", depth)


@pytest.mark.parametrize(("kind", "check"), [(_Counts, _asks_twice), (_CountsAll, _asks_and_recalls)])
def test_an_earlier_cases_answer_is_reused_once_but_never_twice_in_a_case(
    kind: type[_Counts], check: Callable[..., None]
) -> None:
    contract = _contract(check, a=(3,), b=(3,), c=(4,))
    party, other = kind(), _AsksNobodyTwice()
    assert [judge(contract, "a", party).outcome, party.asked] == ["holds", 2]
    assert [judge(contract, "b", party).outcome, party.asked] == ["holds", 3], "the first answer of a case may be old"
    assert [judge(contract, "c", party).outcome, party.asked] == ["holds", 5], "another question"
    assert [judge(contract, "a", other).outcome, other.asked] == ["holds", 2], "another party"


def test_a_recalled_answer_is_in_the_result() -> None:
    party, within = _CountsAll(), _contract(lambda stack: stack.recall("blocks", "A", 1))
    for _ in range(2):
        assert judge(within, "only", party).answered == ANSWERED


def test_the_deadline_of_a_case_is_removed_when_it_ends() -> None:
    assert judge(_contract(_asks), "only", Reference(), deadline_s=5).outcome == "holds"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert judge(_contract(_asks), "only", bad.Hangs(), deadline_s=0.2).words == "no answer within 0.2 s"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_mutant_that_cannot_be_asked_is_void_and_no_kill() -> None:
    def asks(stack: Stack) -> None:
        assert stack.blocks("A", 1) == ("ablock",), "the family is wrong"

    def fate(make: type, case: str = "only") -> str:
        return try_mutant(Mutant(of="T-01", case=case, says="the family is wrong", make=make), _contract(asks)).fate

    assert fate(bad.CannotBeBuilt) == "void"
    assert fate(Reference, case="no-such-case") == "void"
    assert fate(Reference) == "survived"
    assert fate(bad.AnswersNone) == "crashed"
    assert fate(bad.DeclinesEverything) == "void"


def _raises(error: BaseException) -> Callable[[Any], None]:
    def check(stack: Any) -> None:
        stack.blocks("A", 1)
        raise error

    return check


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (AssertionError("dp is 4"), "violated", "dp is 4"),
        (AssertionError(), "violated", "the check gave no words"),
        (NotOffered("it has none"), "not offered", "it has none"),
        (NotOffered(), "not offered", "reference declined this case"),
        (Unreachable("no card"), "not run", "no card"),
        (Unreachable(), "not run", "the check gave no words"),
        (Broken("it is torn"), "broken", "it is torn"),
        (KeyError("x"), "broken", "the check raised KeyError: 'x'"),
        (SystemExit(3), "broken", "the check raised SystemExit: 3"),
        (pytest.skip.Exception("not here"), "broken", "the check raised Skipped: not here"),
    ],
)
def test_each_way_in_which_a_check_ends_has_its_outcome(error: BaseException, outcome: Outcome, words: str) -> None:
    result = judge(_contract(_raises(error)), "only", Reference())
    assert (result.id, result.case, result.outcome, result.words) == ("T-01", "only", outcome, words)
    assert result.violations == ((Violation(words=words),) if outcome == "violated" else ())
    assert result.lack == ("adapter" if outcome == "not offered" else None)
    assert (result.dtype, result.answered) == ("", ANSWERED)
    assert 0 < result.seconds < 60


def test_an_assertion_error_inside_a_stack_is_broken_and_not_violated() -> None:
    class Asserts(Reference):
        def blocks(self, pattern: str, depth: int) -> tuple[str, ...]:
            raise AssertionError("dp is 4")

    def catches(stack: Any) -> None:
        try:
            stack.blocks("A", 1)
        except Broken as error:
            raise error.__cause__ from None  # type: ignore[misc]  # what _put keeps

    result = judge(_contract(catches), "only", Asserts())
    assert (result.outcome, result.violations) == ("broken", ())
    assert result.words == "reference raised AssertionError when it was asked for blocks: dp is 4"


def test_a_result_has_the_time_that_its_case_took() -> None:
    def sleeps(stack: Any) -> None:
        stack.blocks("A", 1)
        time.sleep(0.05)

    began = time.perf_counter()
    result = judge(_contract(sleeps), "only", Reference())
    assert 0.05 <= result.seconds <= time.perf_counter() - began + 1e-6


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [("violated", "wrong words"), ("broken", "crashed"), ("holds", "survived"), ("deviates", "void"),
     ("not offered", "void"), ("untested", "void"), ("not run", "void")],
)  # fmt: skip
def test_the_fate_of_a_mutant_follows_from_its_outcome_live_and_in_a_record(outcome: Outcome, fate: Fate) -> None:
    result = Result(id="T-01", case="only", outcome=outcome, words="dp is 4")
    for each in (result, codec.loads(Result, codec.dumps(result))):
        assert fate_of(each, "ep is") == fate
        assert fate_of(each, "dp is") == ("killed" if outcome == "violated" else fate)


@pytest.mark.parametrize("kind", ["stack", "device", "adapter"])
def test_an_unanswered_question_counts_as_the_declared_lack_of_the_case(kind: Lack) -> None:
    lack = Absence(features=frozenset({"mamba"}), kind=kind, reason="nobody wrote it")
    silent = type("Silent", (_Silent,), {"abilities": Abilities(has=frozenset({"attention"}), lacks=(lack,))})()
    needs = replace(_contract(_asks, a=(), b=()), needs={"a": frozenset({"mamba"}), "b": frozenset({"attention"})})
    result = judge(needs, "a", silent)
    told = "reference does not offer blocks" if kind == "adapter" else "reference: mamba: nobody wrote it"
    assert (result.outcome, result.words, result.lack) == ("not offered", told, kind)
    assert judge(needs, "b", silent).words == "reference does not offer blocks"


def test_without_torch_only_contracts_about_tensors_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert judge(_contract(_asks), "only", Reference()).outcome == "holds"
    result = judge(replace(_contract(_asks), asks=("blocks", "train")), "only", Reference())
    assert (result.outcome, result.words) == ("not run", NO_TORCH)


def test_a_keyboard_interrupt_is_not_recorded_as_an_outcome() -> None:
    with pytest.raises(KeyboardInterrupt):
        judge(_contract(_raises(KeyboardInterrupt())), "only", Reference())


class _Silent(Reference):
    offers = frozenset[str]()


def test_an_unanswered_question_is_the_adapters_lack_or_not_run() -> None:
    alone = judge(_contract(_asks), "only", _Silent())
    assert (alone.outcome, alone.words, alone.lack) == ("not offered", "reference does not offer blocks", "adapter")
    assert judge(_contract(_asks), "only", _Silent(), [Reference()]).words == alone.words, "nothing of its own is asked"
    lacking = judge(replace(_contract(_asks), asks=("blocks", "read_argv")), "only", Reference())
    assert (lacking.outcome, lacking.lack) == ("not run", None)
    assert lacking.words == f"nobody answers read_argv: {remedy_for(['read_argv'])}"
    of_numbers = replace(_contract(_asks), asks=("blocks", "step_memory"))
    silent = type("Silent", (Reference,), {"offers": Reference.offers - {"step_memory"}})()
    declined = judge(of_numbers, "only", silent)
    assert (declined.outcome, declined.lack) == ("not offered", "adapter")
    assert declined.words == "reference does not offer step_memory, which nobody answers for it"


def test_a_layout_that_a_stack_does_not_build_is_not_offered() -> None:
    one_layout = type("OneLayout", (Reference,), {"layouts": frozenset({"own-axis"})})()
    for layout in (None, "own-axis", "borrowed"):
        result = judge(replace(_contract(_asks), layout=layout), "only", one_layout)
        told = (result.outcome, result.words, result.lack)
        if layout == "borrowed":
            assert told == ("not offered", "reference does not build the borrowed layout", "stack")
        else:
            assert told == ("holds", "", None)


@pytest.mark.parametrize(
    ("missing", "megatron"),
    [(("read_argv",), True), (("read_pattern", "blocks"), True), (("blocks",), False), ((), False)],
)
def test_an_unanswered_question_is_reported_with_a_way_to_answer_it(missing: tuple[str, ...], megatron: bool) -> None:
    assert ("make megatron" in remedy_for(missing)) == megatron
    assert megatron or remedy_for(missing) == "name one that does with --with"


@pytest.mark.parametrize(("number", "beyond"), [(1, 0), (999, 0), (1000, 0), (1001, 1), (1003, 3)])
def test_each_reason_of_a_wrong_refusal_is_a_part_of_the_violation(number: int, beyond: int) -> None:
    refused = Refused(Refusal(field=f"f{n}", value="1", problem="no", remedy="none") for n in range(number))
    found = [each.words for each in violations_of(refused, [])]
    assert found[0] == "a legal input was refused: f0 = 1: no; none"
    assert len(found) == min(number, MOST_REFUSALS) + bool(beyond)
    assert (found[-1] == f"a legal input was refused for {beyond} more reasons") == bool(beyond)
    assert violations_of(KeyError("x"), []) == ()
    assert violations_of(AssertionError("x"), []) == (Violation(words="x"),)


def test_a_violation_in_the_declared_words_is_recorded_as_a_kill_with_time_and_bug_ids() -> None:
    def finds(stack: Any) -> None:
        raise AssertionError(f"the family is {stack.blocks('A', 1)[0]}")

    mutant = Mutant(of="T-01", case="only", says="is ablock", make=Reference, bugs=("SSM-01",))
    kill = try_mutant(mutant, _contract(finds))
    assert (kill.of, kill.case, kill.fate, kill.words, kill.bugs) == (
        "T-01", "only", "killed", "violated: the family is ablock", ("SSM-01",),
    )  # fmt: skip
    assert 0 < kill.seconds < 60
    assert try_mutant(replace(mutant, says="is eblock"), _contract(finds)).fate == "wrong words"
    gone = try_mutant(replace(mutant, case="gone"), _contract(finds))
    assert (gone.fate, gone.words, gone.seconds) == ("void", "T-01 has no case 'gone'", 0.0)
    unbuilt = try_mutant(replace(mutant, make=bad.CannotBeBuilt), _contract(finds))
    assert (unbuilt.fate, unbuilt.words) == (
        "void", "the mutant cannot be built: RuntimeError: no driver on this machine",
    )  # fmt: skip

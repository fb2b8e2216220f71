"""Judge one contract in one case: a function from parties to a result, without pytest and without files.

A party answers questions: the stack under test is one, and so is an assistant, such as the table of Megatron's flags.

Only an AssertionError raised by the check itself is a violation, or a refusal of a legal input. A check that lacks
what it needs here, such as a package, raises Unreachable and is not run. Everything else that goes wrong is broken. A
check that returns without having asked a question is broken too: it judged nothing.
"""

import contextlib
import importlib.util
import os
import time
import traceback
from collections.abc import Iterable
from dataclasses import replace

from contracts.contract import Contract, Mutant
from contracts.court import device as devices
from contracts.court import party as asking
from contracts.court.deadline import Overdue, deadline
from contracts.court.party import Broken, OnTheStand, words_of
from contracts.spec import (
    MOST_REFUSALS,
    Heard,
    Lack,
    Moved,
    NotOffered,
    Party,
    Refused,
    Unreachable,
    heard,
    in_float32,
    install_by,
    interpreter,
    parts_of,
    questions,
)
from contracts.spec.records import EXIT_CODES, Fate, Kill, Outcome, Result, Violation

NO_TORCH = (
    "torch is not installed, and without it no contract about numbers is judged: "
    "in the checkout of rankproof run pip install '.[torch]'"
)
DEADLINE_S = 300.0  # for one case; the slowest real one, group calls of 65 536 foreign ranks, was seen to take 107


def judge(
    contract: Contract, case: str, subject: Party, assistants: Iterable[Party] = (), *, deadline_s: float = DEADLINE_S
) -> Result:
    """Judge one case of a contract on a party."""
    needed = contract.features(case) if contract.float32 else frozenset()
    device = devices.asked_on(contract)
    stand = OnTheStand(subject, assistants, contract.asks, contract.conventions, contract.float32, needed, device)
    started, process, allocated = time.perf_counter(), os.getpid(), devices.allocations()

    def result(
        outcome: Outcome, words: str = "", *, violations: tuple[Violation, ...] = (), lack: Lack | None = None
    ) -> Result:
        seconds = round(time.perf_counter() - started, 6)
        return Result(
            id=contract.id, case=case, outcome=outcome, words=words, seconds=seconds, answered=dict(stand.answered),
            violations=violations, lack=lack, dtype="float32" if stand.asked_in_float32 else "",
            device="cuda" if devices.allocations() > allocated else "",
        )  # fmt: skip

    def lacking(words: str, lack: Lack) -> Result:
        return result("not offered", f"{subject.name} does not {words}", lack=lack)

    def unanswered(asked: str) -> Result:
        """Nobody answers for it; where the stack could not be asked this case anyway, that is the reason."""
        absence = stand.abilities and stand.abilities.absence(contract.features(case), contract.asks)
        if absence and absence.kind != "adapter":
            return result("not offered", f"{subject.name}: {absence}", lack=absence.kind)
        return lacking(f"offer {asked}", "adapter")

    if not __debug__:
        return result("broken", interpreter.STRIPPED)
    if not stand.own:
        return unanswered(", ".join(contract.asks))
    if contract.layout is not None and contract.layout not in subject.layouts:
        return lacking(f"build the {contract.layout} layout", "stack")
    if device not in devices.computes_on(subject):
        return lacking(f"compute on {device}", "device")
    if lost := _unable(contract, device):
        return result("not run", lost)
    alone = [asked for asked in stand.missing if questions()[asked].of_numbers]
    if alone:
        return unanswered(f"{', '.join(alone)}, which nobody answers for it")
    if stand.missing:
        return result("not run", f"nobody answers {', '.join(stand.missing)}: {remedy_for(stand.missing)}")
    coarser = in_float32() if stand.narrow and contract.float32 else contextlib.nullcontext()
    with heard() as comparisons, coarser:
        try:
            with deadline(deadline_s, f"{contract.id}[{case}] of {subject.name}"):
                try:
                    contract.check(stand, *contract.asked[case])
                    devices.settle()
                finally:
                    _end_copy(process)
        except KeyboardInterrupt:
            raise
        except Overdue:
            return result("broken", f"no answer within {deadline_s:g} s")
        except BaseException as error:  # pytest.skip and sys.exit are no Exception
            outcome, words = ending(error, stand)
            devices.note_loss(f"{contract.id}[{case}]")
            lack = error.lack if isinstance(error, NotOffered) and outcome != "violated" else None
            found = violations_of(error, comparisons) if outcome == "violated" else ()
            return result(outcome, words, violations=found, lack=lack)
    if not stand.answered:
        return result("broken", "the check asked no question, so it judged nothing")
    return _held(result("holds"), stand)


def _unable(contract: Contract, device: str) -> str:
    """Why nothing can be computed here; empty if it can."""
    if contract.of_numbers and not importlib.util.find_spec("torch"):
        return NO_TORCH
    return "" if device == "cpu" else devices.loss()


def _held(held: Result, stand: OnTheStand) -> Result:
    """A result that holds, unless nothing happened in what was compared, or a stack of this process was asked to
    compute on a device and allocated nothing. One that declined what it was asked had nothing to compute."""
    if stand.floor.words:
        return replace(held, outcome="violated", words=stand.floor.words)
    unused = stand.placed & devices.COMPUTES
    if not unused or held.device == stand.device or stand.declined is not None:
        return held
    words = f"{stand.name} was asked for {', '.join(sorted(unused))} on {stand.device}, and allocated nothing there"
    return replace(held, outcome="broken", words=words)


def _end_copy(process: int) -> None:
    """End a process that a stack has forked and that came back here: two would write one record."""
    if os.getpid() != process:
        os.write(2, b"rankproof: a process that the stack has forked came back to its judge, and was ended\n")
        os._exit(EXIT_CODES["broken"])


def violations_of(error: BaseException, comparisons: Heard) -> tuple[Violation, ...]:
    """Everything that is wrong, where an exception from a check stands for a violation."""
    if isinstance(error, Refused):
        read, more = error.refusals[:MOST_REFUSALS], len(error.refusals) - MOST_REFUSALS
        beyond = (Violation(words=f"a legal input was refused for {more} more reasons"),) if more > 0 else ()
        return (*(Violation(words=f"a legal input was refused: {refusal}") for refusal in read), *beyond)
    return parts_of(error, comparisons) if isinstance(error, AssertionError) else ()


def ending(error: BaseException, stand: OnTheStand) -> tuple[Outcome, str]:
    """The outcome that an exception from a check stands for, and its words."""
    match error:
        case AssertionError() if _of_the_check(error):
            return "violated", str(error) or "the check gave no words"
        case AssertionError():
            return (
                "broken",
                f"{stand.name} raised AssertionError when it was asked for {stand.latest}: {words_of(error)}",
            )
        case Refused() if error is stand.declined:
            return "violated", f"a legal input was refused: {words_of(error)}"
        case Refused():
            return "broken", f"the check itself could not be carried out: {words_of(error)}"
        case Moved():
            return "not run", words_of(error)
        case NotOffered() | ArithmeticError() | LookupError() if stand.floor.words and error is not stand.declined:
            return "violated", stand.floor.words  # a check that gives up where nothing happened
        case NotOffered():
            return "not offered", words_of(error) or f"{stand.name} declined this case"
        case Unreachable():  # the check's own: a party's has become Broken
            return "not run", str(error) or "the check gave no words"
        case Broken():
            return "broken", str(error)
    return "broken", f"the check raised {type(error).__name__}: {words_of(error)}"


def _of_the_check(error: BaseException) -> bool:
    """Whether an error was raised by the check itself, and not while a party was asked."""
    return all(frame.f_code.co_filename != asking.__file__ for frame, _ in traceback.walk_tb(error.__traceback__))


def remedy_for(missing: Iterable[str]) -> str:
    """What a user does so that somebody answers these questions."""
    if {"read_argv", "read_pattern"} & set(missing):
        command = install_by("make megatron", "pip install megatron-core")
        return f"make Megatron-Core available with `{command}` and ask it by --with megatron"
    return "name one that does with --with"


def try_mutant(mutant: Mutant, contract: Contract, assistants: Iterable[Party] = ()) -> Kill:
    """Judge a mutant: does its contract catch it, in the declared words?

    A mutant that cannot be built, or whose case does not exist, is void; one that ends in an error crashed. Neither
    proves that the contract can fail.
    """

    def fate(fate: Fate, words: str, seconds: float = 0.0) -> Kill:
        return Kill(
            mutant=mutant.name, of=mutant.of, case=mutant.case, fate=fate, words=words, bugs=mutant.bugs,
            seconds=seconds,
        )  # fmt: skip

    if mutant.case not in contract.asked:
        return fate("void", f"{mutant.of} has no case {mutant.case!r}")
    try:
        party: Party = mutant.make()
    except Exception as error:
        return fate("void", f"the mutant cannot be built: {type(error).__name__}: {error}")
    result = judge(contract, mutant.case, party, assistants)
    return fate(fate_of(result, mutant.says), f"{result.outcome}: {result.words}", result.seconds)


def fate_of(result: Result, says: str) -> Fate:
    """The fate of a mutant that was judged.

    Only a violation in the declared words is a kill. A crash is none: an error proves nothing about the contract. A
    mutant that could not be asked is void and counts neither way.
    """
    if result.outcome == "violated":
        return "killed" if says in result.words else "wrong words"
    if result.outcome == "broken":
        return "crashed"
    return "survived" if result.outcome == "holds" else "void"

"""The answering side of the protocol, its published schema, and the worked example."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts.spec import Lane, NotOffered, Recipe, Refused, Unreachable, codec, questions, refuse
from contracts.spec.topology import Degrees, Layout, topology
from contracts.stacks.launched import Launched
from contracts.stacks.protocol import PROTOCOL, schema
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import reply, serve
from tests_unit._parties.hostile import raises
from tests_unit._parties.running import ran

ROOT = Path(__file__).parents[1]
SERVED = (sys.executable, "-m", "contracts.stacks.serve")
ADAPTER = (sys.executable, str(ROOT / "docs/examples/shell_launcher/adapter.py"))


def _prints(depth: int) -> Any:
    sys.stdout.write("a word\n")
    os.system("echo a word from below")
    return ("ablock",)


ODD: dict[str, Callable[[int], Any]] = {  # pattern → the one wrong thing that is done for it
    "print": _prints,
    "refuse": raises(refuse("pattern", "refuse", "is odd", "ask for another")),
    "decline": raises(NotOffered("not today")),
    "nan": lambda depth: (float("nan"),),
    "object": lambda depth: object(),
    "mistyped": lambda depth: (depth,),
    "crash": raises(KeyError("rank")),
}


class Odd:
    name = "odd"
    version = "0"
    offers = frozenset({"blocks"})
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {"blocks": "shimmed: everything"}

    def blocks(self, pattern: str, depth: int) -> Any:
        """Do what the pattern says."""
        return ODD[pattern](depth) if pattern in ODD else ("ablock",) * depth


def ask(**message: Any) -> dict[str, Any]:
    asked = {"protocol": PROTOCOL, "id": 7, "question": "blocks", "arguments": {"pattern": "A", "depth": 1}} | message
    return reply(Odd(), json.dumps(asked))


@pytest.fixture(scope="module")
def odd() -> Iterator[Launched]:
    with Launched((*SERVED, "test_serve:Odd"), env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests_unit'}"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def served() -> Iterator[Launched]:
    with Launched((*SERVED, "contracts.stacks.reference.stack:Reference"), cwd=ROOT) as stack:
        yield stack


def _reached(kind: Any) -> Iterator[type]:
    """Every dataclass that a type leads to."""
    if dataclasses.is_dataclass(kind):
        yield kind
        for each in codec.hints(kind).values():
            yield from _reached(each)
    for each in typing.get_args(kind):
        yield from _reached(each)


def test_no_two_values_of_the_protocol_share_a_name() -> None:
    """The schema keys them by it: the second would take the place of the first."""
    named: dict[str, set[type]] = {}
    for question in questions().values():
        for kind in (*question.parameters.values(), question.answer):
            for each in _reached(kind):
                named.setdefault(each.__name__, set()).add(each)
    assert len(named) > 50
    assert not [name for name, kinds in named.items() if len(kinds) > 1]


def test_the_schema_is_a_schema_and_knows_every_question() -> None:
    Draft202012Validator.check_schema(schema())
    defined = schema()["$defs"]
    assert {f"ask.{name}" for name in (*questions(), "hello")} <= defined.keys()
    assert {f"reply.{name}" for name in (*questions(), "hello")} <= defined.keys()


@pytest.mark.parametrize(
    "change",
    [{"arguments": {"pattern": "A"}}, {"arguments": {"pattern": "A", "depth": "1"}}, {"question": "block"}, {"more": 1},
     {"arguments": {"pattern": "A", "depth": 1, "more": 1}}, {"arguments": []}, {"protocol": "rankproof/2"}],
    ids=str,
)  # fmt: skip
def test_the_schema_refuses_a_line_that_the_protocol_does_not_have(change: dict[str, Any]) -> None:
    asked = {"protocol": PROTOCOL, "id": 7, "question": "blocks", "arguments": {"pattern": "A", "depth": 1}}
    answered = {"protocol": PROTOCOL, "id": 7, "answer": ["ablock"]}
    valid = Draft202012Validator(schema()).is_valid
    assert valid(asked)
    assert valid(answered)
    assert not valid(asked | change)
    assert not valid(answered | change)
    assert not valid(answered | {"refused": [{}]})


def test_a_served_stack_gives_the_same_answers_as_in_process(served: Launched) -> None:
    home = Reference()
    assert (served.name, served.version) == (home.name, home.version)
    assert (served.offers, served.layouts, served.labels) == (home.offers, home.layouts, home.labels)
    degrees = Degrees(pp=2, tp=2, ep=4)
    assert served.blocks("AEMEAEMEAEMR", 52) == home.blocks("AEMEAEMEAEMR", 52)
    assert served.topology(degrees, 64, "borrowed") == topology(degrees, 64, "borrowed")
    asked = (degrees, 64, "own-axis", 5, "expert")
    assert served.gradient_reduction(*asked) == home.gradient_reduction(*asked)


def test_a_served_stack_keeps_the_words_of_its_refusals(served: Launched) -> None:
    with pytest.raises(Refused) as there:
        served.topology(Degrees(tp=3), 8, "borrowed")
    with pytest.raises(Refused) as here:
        Reference().topology(Degrees(tp=3), 8, "borrowed")
    assert there.value.refusals == here.value.refusals


@pytest.mark.slow
def test_the_groups_of_65536_ranks_fit_through_the_pipe(served: Launched) -> None:
    answer = served.topology(Degrees(pp=8, tp=8, cp=2, ep=16), 65536, "borrowed")
    assert answer.sizes["dp"] == 512
    assert sum(map(len, answer.groups["dp"])) == 65536


def test_prints_of_a_stack_never_reach_the_protocol(odd: Launched) -> None:
    assert odd.blocks("print", 1) == ("ablock",)
    assert odd.labels == {"blocks": "shimmed: everything"}


@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        ("refuse", Refused, "pattern = 'refuse': is odd"),
        ("decline", NotOffered, "not today"),
        ("nan", Unreachable, "odd failed: TypeError: blocks was answered with something that has no JSON form"),
        ("object", Unreachable, "a object has no JSON form"),
        ("mistyped", Unreachable, "answered blocks with something that is not a tuple"),
        ("crash", Unreachable, "odd failed: KeyError: 'rank'"),
    ],
)
def test_each_failure_of_a_served_stack_raises_its_own_error(
    odd: Launched, pattern: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        odd.blocks(pattern, 1)
    assert odd.blocks("A", 2) == ("ablock", "ablock"), "the party must go on"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"protocol": "rankproof/2"}, "Misasked: not a question of rankproof/1"),
        ({"extra": 1}, "Misasked: not a question of rankproof/1"),
        ({"question": "colour"}, "Misasked: there is no question 'colour'"),
        ({"question": 3}, "Misasked: question must be a string"),
        ({"arguments": {"pattern": "A"}}, "Misasked: blocks takes pattern, depth, not pattern"),
    ],
)
def test_a_line_that_is_no_question_is_an_error_and_not_a_refusal(message: dict[str, Any], words: str) -> None:
    answer = ask(**message)
    assert answer["id"] == 7
    assert words in answer["error"]


def test_an_argument_of_another_type_is_refused_by_name() -> None:
    [refusal] = ask(arguments={"pattern": "A", "depth": True})["refused"]
    assert (refusal["field"], refusal["problem"]) == ("depth", "is not a int")


def test_an_unreadable_line_is_answered_and_the_next_one_too() -> None:
    asked = {"protocol": PROTOCOL, "id": 1, "question": "blocks", "arguments": {"pattern": "A", "depth": 1}}
    out = io.StringIO()
    serve(Odd(), ["{not json\n", json.dumps(asked) + "\n"], out)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["id"], "is not JSON" in first["error"]) == (0, True)
    assert second == {"protocol": PROTOCOL, "id": 1, "answer": ["ablock"]}
    for line in (first, second):
        Draft202012Validator(schema()).validate(line)


def test_an_unknown_stack_is_reported_in_one_line() -> None:
    for path, words in [("nowhere:Party", "No module named"), ("contracts:Party", "no attribute"), ("odd", "usage")]:
        done = ran([*SERVED, path], cwd=ROOT, input="", code=1)
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_serving_a_stack_needs_only_the_standard_library() -> None:
    line = json.dumps({"protocol": PROTOCOL, "id": 1, "question": "blocks", "arguments": {"pattern": "A", "depth": 2}})
    command = [sys.executable, "-S", "-m", "contracts.stacks.serve", "contracts.stacks.reference.stack:Reference"]
    done = subprocess.run(
        command, cwd="/", env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, input=line
    )
    assert json.loads(done.stdout)["answer"] == ["ablock", "ablock"]


def recipe(**changes: Any) -> Recipe:
    sizes = {"hidden": 3584, "ffn_hidden": 18944, "heads": 56, "kv_groups": 8, "seq_length": 4096}
    named = {"name": "toy", "family": "toy", "pattern": "AEMEAEMEAEMR", "depth": 52}
    return codec.decode(Recipe, named | sizes | changes)


def test_the_worked_example_puts_a_shell_launcher_under_test() -> None:
    stack = Launched(ADAPTER)
    assert stack.blocks("AEMEAEMEAEMR", 13)[10:] == ("mblock", "rblock", "ablock")
    launch = stack.launch(recipe(), Lane(mode="nemo_native", degrees=Degrees(tp=2, sp=True)))
    assert launch.torchrun == ("torchrun", "--standalone", "--nproc_per_node=8")
    assert launch.argv[:2] == ("--hybrid-layer-pattern", "*EME*EME*EMM" * 4 + "*EME")
    assert launch.argv[-1] == "--sequence-parallel"
    assert launch.recurrent.numbers == (12, 24, 36, 48)


def test_an_error_of_the_shell_launcher_is_a_refusal() -> None:
    with pytest.raises(Refused, match="pattern 'AXE' has a letter that is not A, E, M or R"):
        Launched(ADAPTER).blocks("AXE", 3)

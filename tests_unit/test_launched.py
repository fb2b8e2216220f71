"""A party that a command serves: every way a command can go wrong is told apart from an answer."""

import json
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contracts.spec import NotOffered, Party, Unreachable
from contracts.stacks.launched import Launched
from contracts.stacks.protocol import schema

ROOT = Path(__file__).parents[1]
HELLO = {"name": "toy", "version": "1", "offers": ["blocks", "topology"], "layouts": ["borrowed"], "labels": {}}

PREAMBLE = """
import json, os, sys, time
line = sys.stdin.readline()
asked = json.loads(line)
def say(**body):
    print(json.dumps({"protocol": "rankproof/1", "id": asked["id"], **body}))
if asked["question"] == "hello":
    say(answer=%r)
    sys.exit(0)
"""

Make = Callable[..., tuple[str, ...]]


@pytest.fixture
def command(tmp_path: Path) -> Make:
    """Write a command that introduces itself properly and then does what `body` says."""

    def make(body: str, **hello: Any) -> tuple[str, ...]:
        script = tmp_path / "command.py"
        script.write_text(PREAMBLE % (HELLO | hello) + textwrap.dedent(body), encoding="utf-8")
        return (sys.executable, str(script))

    return make


def raw(body: str) -> tuple[str, ...]:
    """A command that does nothing but `body`, from its first question on."""
    return (sys.executable, "-c", body)


def test_a_command_of_four_lines_can_answer_as_a_stack(command: Make) -> None:
    stack = Launched(command("say(answer=['ablock'] * asked['arguments']['depth'])"))
    assert isinstance(stack, Party)
    assert (stack.name, stack.version, stack.layouts) == ("toy", "1", {"borrowed"})
    assert stack.blocks("A", 3) == ("ablock", "ablock", "ablock")
    assert stack.blocks(pattern="A", depth=1) == ("ablock",)


def test_every_question_and_every_answer_matches_the_published_schema(command: Make, tmp_path: Path) -> None:
    record = tmp_path / "asked.jsonl"
    Launched(command(f"open({str(record)!r}, 'a').write(line); say(answer=['ablock'])")).blocks("A", 1)
    valid = Draft202012Validator(schema())
    for line in record.read_text().splitlines():
        valid.validate(json.loads(line))
    assert not valid.is_valid({"protocol": "rankproof/1", "id": 1, "question": "blocks", "arguments": {"depth": 1}})


def test_a_launched_stack_can_decline_a_case_or_a_whole_question(command: Make) -> None:
    stack = Launched(command("say(not_offered='only depth 1')"))
    with pytest.raises(NotOffered, match="only depth 1"):
        stack.blocks("A", 2)
    with pytest.raises(NotOffered, match="toy does not offer stages"):
        stack.stages("A", 1, 1)


def test_a_launched_stack_has_no_attribute_that_is_no_question(command: Make) -> None:
    stack = Launched(command(""))
    assert not hasattr(stack, "colour")
    with pytest.raises(TypeError, match="blocks takes pattern, depth"):
        stack.blocks("A")
    with pytest.raises(TypeError, match="takes 2 arguments"):
        stack.blocks("A", 1, 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.stderr.write('disk full\\n'); sys.exit(3)", r"exit code 3 \(asked blocks\); its stderr ends: disk full"),
        ("say(answer=['ablock']); sys.exit(1)", "exit code 1"),
        ("os.kill(os.getpid(), 11)", "signal SIGSEGV"),
        ("pass", "printed nothing"),
        ("print('Loading…')", "is not JSON"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "not UTF-8"),
        ("print('WARNING: slow'); say(answer=['ablock'])", "more than one line"),
        ("say(answer=['ablock']); print('bye')", "more than one line"),
        ("print(json.dumps({'protocol': 'rankproof/1', 'id': asked['id'], 'answer': ['a']})[:-4])", "is not JSON"),
        ("print('[' * 100000)", "is not JSON"),
        ("print('[]')", "is not an object"),
        ("print('{}')", "sent a reply with nothing"),
        ("say(answer=[], error='both')", "sent a reply with protocol, id, answer, error"),
        ("say(answer=[], note='hi')", "sent a reply with protocol, id, answer, note"),
        ("asked['id'] += 1; say(answer=['ablock'])", "id 3 instead of 2"),
        ("asked['id'] = True; say(answer=['ablock'])", "id True instead of 2"),
        ("print(json.dumps({'protocol': 'rankproof/2', 'id': asked['id'], 'answer': []}))", "speaks 'rankproof/2'"),
        ('print(\'{"protocol":"rankproof/1","id":2,"id":2,"answer":[]}\')', "is given twice"),
        ('print(\'{"protocol":"rankproof/1","id":2,"answer":[NaN]}\')', "NaN is not a JSON number"),
        ("say(answer=[1])", "answered blocks with something that is not a tuple"),
        ("say(answer='ablock')", "is not a list"),
        ("say(answer=None)", "is not a list"),
        ("say(refused=[])", "refused without a reason"),
        ("say(refused=['no'])", "refused without saying what"),
        ("say(refused=['no'] * 100_000)", "refused for 100000 reasons; at most 1000 are read"),
        ("say(not_offered=None)", "gave None as the reason of not_offered"),
        ("say(error='KeyError: rank')", "toy failed: KeyError: rank"),
        ("sys.stdin.close(); sys.exit(4)", "ended with exit code 4 without an answer"),
        ("print('{\"protocol\":', end='')", "before its line was complete"),
    ],
)
def test_a_broken_reply_makes_the_stack_unreachable(command: Make, body: str, words: str) -> None:
    stack = Launched(command(body, persistent=words.startswith(("ended", "before"))))
    with pytest.raises(Unreachable, match=words):
        stack.blocks("A", 1)


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"offers": ["telepathy"]}, "offers telepathy, which nobody asks"),
        ({"labels": {"telepathy": "shimmed"}}, "offers telepathy, which nobody asks"),
        ({"offers": "blocks"}, "is not a list"),
        ({"layouts": ["mesh"]}, "is none of 'own-axis', 'borrowed'"),
        ({"persistent": "yes"}, "is not a bool"),
        ({"name": ""}, "without a name"),
        ({"version": 1}, "is not a str"),
        ({"mood": "good"}, "has no such field"),
    ],
)
def test_a_false_introduction_of_a_launched_stack_is_found_at_once(
    command: Make, hello: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unreachable, match=words):
        Launched(command("", **hello))


def test_a_persistent_command_that_prints_without_a_question_is_unreachable(command: Make) -> None:
    body = "say(answer=['ablock']); sys.stdout.flush(); time.sleep(0.05); print('more', flush=True); time.sleep(5)"
    stack = Launched(command(body, persistent=True))
    assert stack.blocks("A", 1) == ("ablock",)
    time.sleep(0.3)
    with pytest.raises(Unreachable, match="spoke before it was asked: 'more"):
        stack.blocks("A", 1)


def test_a_persistent_command_is_started_once_and_again_only_after_it_failed(command: Make) -> None:
    body = """
    while line:
        asked = json.loads(line)
        if asked["arguments"]["pattern"] == "die":
            sys.exit(9)
        say(answer=[str(os.getpid())])
        sys.stdout.flush()
        line = sys.stdin.readline()
    """
    with Launched(command(body, persistent=True)) as stack:
        first, second = stack.blocks("A", 1), stack.blocks("A", 1)
        with pytest.raises(Unreachable, match="exit code 9"):
            stack.blocks("die", 1)
        third = stack.blocks("A", 1)
        assert first == second != third
        assert Path(f"/proc/{third[0]}").exists()
    assert not Path(f"/proc/{third[0]}").exists()


def test_a_slow_command_is_waited_for_and_a_hanging_one_killed_with_all_it_started(
    command: Make, tmp_path: Path
) -> None:
    slow = Launched(command("time.sleep(0.5); say(answer=['ablock'])"), timeout_s=20)
    assert slow.blocks("A", 1) == ("ablock",)
    note = tmp_path / "child"
    body = f"""
    import subprocess
    child = subprocess.Popen(["sleep", "60"])
    open({str(note)!r}, "w").write(str(child.pid))
    time.sleep(60)
    """
    hanging = Launched(command(body), timeout_s=1.0)
    started = time.monotonic()
    with pytest.raises(Unreachable, match="gave no answer in time"):
        hanging.blocks("A", 1)
    assert time.monotonic() - started < 5
    assert _is_gone(int(note.read_text()))


def test_a_command_that_answers_and_does_not_exit_is_unreachable(command: Make) -> None:
    body = "say(answer=['ablock']); sys.stdout.flush(); os.close(1); time.sleep(60)"
    with pytest.raises(Unreachable, match="did not end within 1 s"):
        Launched(command(body), timeout_s=1.0).blocks("A", 1)


def test_a_child_that_a_command_leaves_neither_delays_the_answer_nor_survives(command: Make, tmp_path: Path) -> None:
    note = tmp_path / "child"
    body = f"""
    import subprocess
    child = subprocess.Popen(["sleep", "60"])
    open({str(note)!r}, "w").write(str(child.pid))
    say(answer=["ablock"])
    """
    started = time.monotonic()
    assert Launched(command(body), timeout_s=30).blocks("A", 1) == ("ablock",)
    assert time.monotonic() - started < 10
    assert _is_gone(int(note.read_text()))


def test_a_hundred_megabytes_of_output_are_refused_without_being_read(command: Make) -> None:
    endless = "for _ in range(100): sys.stdout.write('x' * 2**20)\n"
    stack = Launched(command(endless), limit_bytes=2**20)
    with pytest.raises(Unreachable, match="printed more than 1048576 bytes"):
        stack.blocks("A", 1)
    with pytest.raises(Unreachable, match="printed more than 33554432 bytes"):
        Launched(command(endless)).blocks("A", 1)


def test_a_hundred_megabytes_on_stderr_do_not_block_and_their_end_is_quoted(command: Make) -> None:
    loud = "for _ in range(100): sys.stderr.write('x' * 2**20)\nsys.stderr.write('the end')\n"
    assert Launched(command(loud + "say(answer=['ablock'])\n")).blocks("A", 1) == ("ablock",)
    with pytest.raises(Unreachable, match=r"the end$") as caught:
        Launched(command(loud + "sys.exit(1)\n")).blocks("A", 1)
    assert len(str(caught.value)) < 1000


def test_a_question_larger_than_a_pipes_buffer_arrives_complete(command: Make) -> None:
    stack = Launched(command("say(answer=[str(len(asked['arguments']['pattern']))])"))
    assert stack.blocks("A" * 1_000_000, 1) == ("1000000",)


def test_a_command_may_answer_without_reading_the_question() -> None:
    line = json.dumps({"protocol": "rankproof/1", "id": 1, "answer": HELLO})
    assert Launched(("sh", "-c", f"exec <&-; echo {shlex.quote(line)}")).name == "toy"


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (("/nonexistent/launcher",), Unreachable, "cannot be started"),
        (("true",), Unreachable, r"printed nothing \(asked hello\)"),
        (("false",), Unreachable, "exit code 1"),
        ("true", ValueError, "sequence of words"),
    ],
)
def test_a_command_that_cannot_start_or_says_nothing_is_unreachable(
    command: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Launched(command)


def test_environment_and_directory_are_those_asked_for(tmp_path: Path) -> None:
    body = (
        "import json, os, sys; asked = json.loads(sys.stdin.readline()); print(json.dumps({'protocol': 'rankproof/1',"
        f"'id': asked['id'], 'answer': {HELLO!r} | {{'name': os.environ['WHO'] + ' ' + os.getcwd()}}}}))"
    )
    assert Launched(raw(body), cwd=tmp_path, env={"WHO": "me"}).name == f"me {tmp_path}"
    assert "WHO" not in os.environ


def test_a_launched_stack_starts_its_own_command_in_a_fork(command: Make) -> None:
    body = """
    while line:
        asked = json.loads(line)
        say(answer=[str(os.getpid())])
        sys.stdout.flush()
        line = sys.stdin.readline()
    """
    with Launched(command(body, persistent=True)) as stack:
        ours = stack.blocks("A", 1)
        child = os.fork()
        if child == 0:
            theirs = stack.blocks("A", 1)
            stack.close()
            os._exit(0 if theirs != ours else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert stack.blocks("A", 1) == ours


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; one that its new parent has not reaped yet has."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False

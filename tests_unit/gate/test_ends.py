"""How the command ends where its surroundings fail: never as if a stack were violated, and with nobody's files gone."""

import json
import os
import pty
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.spec.records import EXIT_CODES
from tests_unit._parties.running import ROOT, Done, environment, ran, write

VIOLATED, BROKEN, USAGE = EXIT_CODES["violated"], EXIT_CODES["broken"], 2
WORDS = ("check", "--profile", "PAT-01", "--with", "none", "--report", "out")
WRONG = """
class Wrong:
    name, version, offers, layouts, labels = "wrong", "1", frozenset({"blocks"}), frozenset(), {}

    def blocks(self, pattern, depth):
        return ("ablock",) * depth
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "rankproof", *words]


def shell(folder: Path, line: str, code: int | None = None, **variables: str) -> Done:
    """A line of bash in which `rp` is the command."""
    rp = f'rp() {{ {sys.executable} -P -m rankproof "$@"; }}'
    (folder / "wrong.py").write_text(WRONG)
    return ran(["bash", "-c", f"{rp}\n{line}"], code=code, cwd=folder, env=environment(**variables))


def limited(folder: Path, of: int, most: int, module: str = "rankproof", code: int | None = None) -> Done:
    """The command where the system gives it no more than so much of something."""
    words = [sys.executable, "-P", "-m", module, *WORDS]
    return ran(words, code=code, cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE="1"),
               preexec_fn=lambda: resource.setrlimit(of, (most, most)))  # fmt: skip


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stdout_or_stderr_does_not_change_the_exit_code(closed: str, tmp_path: Path) -> None:
    for stack, code in (("reference", 0), ("wrong:Wrong", VIOLATED)):
        done = shell(tmp_path, f"rp {' '.join(WORDS)} --stack {stack} {closed}; echo code $? >> codes")
        assert (tmp_path / "codes").read_text().splitlines()[-1] == f"code {code}", done.stdout + done.stderr
        assert json.loads((tmp_path / "out/verdict.json").read_text())["exit_code"] == code
        assert "Traceback" not in done.stderr


def test_the_exit_code_stays_right_if_the_reader_of_the_pipe_leaves(tmp_path: Path) -> None:
    for stack, code in (("reference", 0), ("wrong:Wrong", VIOLATED)):
        line = f"rp {' '.join(WORDS)} --form json --verbose --stack {stack} | head -c 1 > /dev/null"
        done = shell(tmp_path, f"{line}; echo ${{PIPESTATUS[0]}}")
        assert done.stdout == f"{code}\n", done.stderr
        assert "before there was a verdict" not in done.stderr
    again = shell(tmp_path, "rp report out --form html | head -c 1 > /dev/null; echo ${PIPESTATUS[0]}")
    assert again.stdout == f"{VIOLATED}\n", again.stderr


@pytest.mark.parametrize("module", ["rankproof", "contracts.harness.cli"])
def test_without_a_temporary_folder_check_ends_with_one_line_and_no_verdict(module: str, tmp_path: Path) -> None:
    done = limited(tmp_path, resource.RLIMIT_FSIZE, 0, module)
    assert done.returncode in (BROKEN, USAGE), done.stderr
    assert done.stderr.splitlines()[-1].startswith("rankproof: ")


@pytest.mark.parametrize("files", [8, 12, 20])
def test_too_few_file_descriptors_never_give_a_violation(files: int, tmp_path: Path) -> None:
    done = limited(tmp_path, resource.RLIMIT_NOFILE, files)
    assert done.returncode in (0, BROKEN, USAGE), done.stderr
    assert done.returncode == 0 or done.stderr.splitlines()[-1].startswith("rankproof: ")


@pytest.mark.parametrize(
    "words", ["--deadline nan", "--deadline inf", "--deadline 1e300", "--profile ''", "--profile ' , '"]
)
def test_an_unknown_stack_profile_or_file_is_a_usage_error(words: str, tmp_path: Path) -> None:
    assert "Traceback" not in shell(tmp_path, f"rp check --with none --report out {words}", code=USAGE).stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_record_key_is_a_usage_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x")
    for file in ("nowhere", "short"):
        done = shell(tmp_path, f"rp {' '.join(WORDS)}", RANKPROOF_RECORD_KEY_FILE=str(tmp_path / file), code=USAGE)
        assert "RANKPROOF_RECORD_KEY_FILE" in done.stderr


def test_a_report_folder_with_other_files_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    for names in (["summary.md", "junit.xml", "report.html"], ["output.log"], ["run.jsonl", "summary.md"]):
        mine = dict.fromkeys(names, "mine")
        write(tmp_path / "out", mine)
        for line in (f"rp {' '.join(WORDS)} --stack nosuch:X", f"rp {' '.join(WORDS)} --stack reference"):
            done = shell(tmp_path, line, code=USAGE)
            assert {each.name: each.read_text() for each in (tmp_path / "out").iterdir()} == mine
        assert "which no run of rankproof left there" in done.stderr
        if names == ["output.log"]:
            done = shell(tmp_path, "rp selftest --only PAT-01 --with none --report out")
            assert (done.returncode, (tmp_path / "out/output.log").read_text()) == (USAGE, "mine"), done.stderr
        shutil.rmtree(tmp_path / "out")


def test_a_folder_is_used_again_whatever_became_of_the_run_before(tmp_path: Path) -> None:
    """Also of one that died before it had a record, and left only what its stack had printed."""
    (tmp_path / "dies.py").write_text("import os\nprint('about to', flush=True)\nos._exit(0)\n")
    shell(tmp_path, f"rp {' '.join(WORDS)} --stack dies:Dies", code=BROKEN)
    assert "about to" in (tmp_path / "out/output.log").read_text()
    for _ in range(2):
        shell(tmp_path, f"rp {' '.join(WORDS)} --stack reference", code=0)
    assert not (tmp_path / "out/run.jsonl.part").exists()


def on_a_terminal(folder: Path, *words: str) -> str:
    """The text that a terminal is written."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, command(*words), environment(RANKPROOF_PROGRESS="1", TERM="xterm", COLUMNS="100"))
    said = b""
    read: Callable[[], bytes] = lambda: os.read(terminal, 1 << 16)  # noqa: E731
    try:
        while more := read():
            said += more
    except OSError:  # the other end is closed
        pass
    os.waitpid(pid, 0)
    return said.decode()


def test_the_report_begins_on_its_own_line_and_does_not_mention_older_runs(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    lines = [{"header": {}}, {"plan": {"items": [{"id": "A-01", "case": str(n)} for n in range(1755)]}},
             *({"result": {"id": "A-01", "case": str(n), "outcome": "holds"}} for n in range(220))]  # fmt: skip
    write(tmp_path, {"out/run.jsonl.part": "".join(json.dumps(each) + "\n" for each in lines), "wrong.py": WRONG})
    said = on_a_terminal(tmp_path, *WORDS, "--stack", "wrong:Wrong")
    assert "of 1755" not in said
    before, report, _ = said.partition("report: ")
    assert report
    assert before.endswith(("\r\x1b[1A\x1b[2K", "\n")), repr(before[-80:])
    assert str(ROOT) not in before


@pytest.mark.parametrize(("only", "begins", "gone"), [
    ("TOPO-02b", "\x1b[3mKill matrix", "\r\x1b[1A\x1b[2K"),
    ("ZZZ", "rankproof: --only", "\r\x1b[K"),
])  # fmt: skip
def test_self_test_output_begins_on_its_own_line_after_progress(
    only: str, begins: str, gone: str, tmp_path: Path
) -> None:
    before, said, _ = on_a_terminal(tmp_path, "selftest", "--only", only, "--with", "none").partition(begins)
    assert said
    assert "rankproof: preparing" in before
    assert before.endswith(gone), repr(before[-80:])


ADAPTERS = {
    "raises": "raise RuntimeError('the fork was imported')\n",
    "lacks": "import there_is_no_such_package\n",
    "leaves": "import sys\nsys.exit(0)\n",
    "unbuilt": "class Ours:\n    def __init__(self):\n        raise OSError('no driver')\n",
}


@pytest.mark.parametrize("how", ADAPTERS)
def test_a_stack_that_cannot_be_loaded_still_gets_a_complete_report(how: str, tmp_path: Path) -> None:
    """The commonest red of a pull request."""
    (tmp_path / "ours.py").write_text(ADAPTERS[how])
    done = shell(tmp_path, f"rp {' '.join(WORDS)} --stack ours:Ours", code=EXIT_CODES["incomplete"])
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1].startswith("INCOMPLETE: ours:Ours not loaded, profile PAT-01 (")
    said = {"raises": "the fork was imported", "lacks": "there_is_no_such_package", "leaves": "SystemExit",
            "unbuilt": "no driver"}[how]  # fmt: skip
    for name in ("junit.xml", "summary.md", "annotations.txt", "report.html", "results.sarif", "run.jsonl"):
        text = (tmp_path / "out" / name).read_text()
        assert text
        assert said in text or name == "results.sarif", name
    assert "9 not run" in done.stdout
    assert said in done.stderr.splitlines()[0]
    shell(tmp_path, f"rp {' '.join(WORDS)} --stack nosuch.ours:Ours --report other", code=USAGE)
    assert not (tmp_path / "other").exists()

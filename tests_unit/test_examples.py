"""README.md, CONTRIBUTING.md, the guide and some pages of docs/ are carried out as they stand.

A block has a comment before it. `run: with NAME, …; file NAME; in FOLDER; ranks; slow; counts` are commands, run in a
copy of the folder with these mistakes put back (the guide's folder is the toy trainer's). `change: NAME in FILE` is a
diff from a mistake to what stands in the example; `in FILE` is code of it; `file: NAME` is a file; `history` are
commands in a repository with some commits; `not run: WHY` is a block that no test runs. In what is printed `…` stands
for anything, and with `counts` a number for any number. A command of which nothing is shown has to end with 0.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.harness.gate import today
from tests_unit._parties.running import RANKPROOF, ROOT, environment, ran, rankproof, write
from tests_unit.test_answering import checkout as repository
from tests_unit.test_answering import git

TOY = ROOT / "docs/examples/toy_trainer"
PAGE = ROOT / "docs/put-your-stack-under-test.md"
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
COMMAND = "rankproof"
BLOCK = re.compile(r"<!-- ([a-z]+):? ?([^\n]*?) -->\n```\w+\n(.*?)```", re.DOTALL)

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these commands need torch")
slow = [pytest.mark.slow, needs_torch]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Commands of the page, and where they are run."""

    mistakes: tuple[str, ...]
    files: tuple[str, ...]
    folder: str
    counts: bool
    ranks: bool
    slow: bool
    shown: str


def _blocks(kind: str, page: Path = PAGE) -> list[tuple[str, str]]:
    return [(told, text) for found, told, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def _run(told: str, text: str, folder: str, *, slow: bool) -> Run:
    words = [word.strip() for word in told.split(";")]
    said = dict(word.partition(" ")[::2] for word in words)
    listed = {name: tuple(filter(None, said.get(name, "").split(", "))) for name in ("with", "file")}
    return Run(
        mistakes=listed["with"], files=listed["file"], folder=said.get("in", folder), counts="counts" in said,
        ranks="ranks" in said, slow=slow or "slow" in said, shown=text,
    )  # fmt: skip


RUNS = [_run(*block, str(TOY.relative_to(ROOT)), slow=True) for block in _blocks("run")]
README_RUNS = [_run(*block, "", slow=False) for block in _blocks("run", README)]
UPSTREAM_RUNS = [_run(*block, "", slow=False) for block in _blocks("run", ROOT / "docs/report-upstream.md")]
CHANGES = {told.partition(" in ")[0]: (told.partition(" in ")[2], text) for told, text in _blocks("change")}
FILES = dict(_blocks("file") + _blocks("file", README))
MARKED = [
    pytest.param(
        run,
        marks=[*(slow if run.slow else [pytest.mark.unit]), *([pytest.mark.torchrun] if run.ranks else [])],
        id=f"{page}-{number}-{'-and-'.join(run.mistakes) or 'as-it-stands'}",
    )
    for page, runs in (("guide", RUNS), ("readme", README_RUNS), ("upstream", UPSTREAM_RUNS))
    for number, run in enumerate(runs, start=1)
]


def _put_back(folder: Path, mistake: str) -> None:
    """Undo one diff of the page: what it adds goes, what it removes comes back."""
    name, diff = CHANGES[mistake]
    lines = diff.splitlines()
    now = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("+", " "))
    then = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("-", " "))
    text = (folder / name).read_text(encoding="utf-8")
    assert text.count(now) == 1, f"{name} does not have what {mistake} was mended to:\n{now}"
    (folder / name).write_text(text.replace(now, then), encoding="utf-8")


def _done(command: str, folder: Path, slow: bool) -> tuple[int, str]:
    """The exit code of a command, and what it printed. A slow one needs torch."""
    name, *words = shlex.split(command, comments=True)
    assert name in (COMMAND, "python", "torchrun"), f"the page runs {name}"
    if name == "torchrun":
        words = ["-m", "torch.distributed.run", "--standalone", *(str(RANKPROOF) if w == COMMAND else w for w in words)]
    if name == COMMAND:
        done = rankproof(*words, cwd=folder, limit_s=280, numbers=slow, OMP_NUM_THREADS="1")
    else:
        done = subprocess.run([sys.executable, *words], cwd=folder, env=environment(OMP_NUM_THREADS="1"),
                              capture_output=True, text=True, check=False, timeout=280)  # fmt: skip
    told = [line for line in done.stderr.splitlines() if line.startswith(f"{RANKPROOF.name}: ")]
    return done.returncode, (done.stdout + "\n".join(told)).replace(RANKPROOF.name, COMMAND)


def _pattern(line: str, counts: bool) -> str:
    """The pattern of a shown line: blanks are alike, … is anything, a number perhaps any number."""
    pattern = ".*".join([re.escape(part) for part in " ".join(line.split()).split("…")])
    return re.sub(r"\d+", lambda _: r"\d+", pattern) if counts else pattern


def _behind(pattern: str, lines: list[str], start: int) -> int:
    """The first line after a match at or after `start`, -1 for none; a long path may have wrapped what is shown."""
    for first in range(start, len(lines)):
        for wrapped in (1, 2, 3):
            if re.fullmatch(pattern, " ".join(lines[first : first + wrapped])):
                return first + wrapped
    return -1


@pytest.mark.parametrize("run", MARKED)
def test_the_output_on_the_page_equals_that_of_its_commands(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    if run.folder:
        kept = shutil.ignore_patterns("__pycache__", "reports")
        shutil.copytree(ROOT / run.folder, folder, ignore=kept, dirs_exist_ok=True)
    for mistake in run.mistakes:
        _put_back(folder, mistake)
    for name in run.files:
        text = re.sub(r"(?m)^expires = .*", f"expires = {today()}", FILES[name])  # the page's own date passes
        (folder / name).write_text(text, encoding="utf-8")
    for part in run.shown.split("$ ")[1:]:
        command, *shown = part.splitlines()
        code, printed = _done(command, folder, run.slow)
        assert shown or code == 0, f"{command} ended with {code}:\n{printed}"
        lines, at = [" ".join(line.split()) for line in printed.splitlines()], 0
        for line in shown:
            pattern = _pattern(line, run.counts)
            if line.strip() not in ("", "…"):
                at = _behind(pattern, lines, at)
                assert at >= 0, f"{command}: no {line!r} in\n{printed}"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Commits of an adapter and a trainer: v1 is right and all after it wrong; the second of these cannot be imported,
    the last is about the trainer."""
    here = tmp_path / "here"
    wrong = (ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8")
    right = wrong.replace(
        "letter] for letter in pattern * (depth // len(pattern))", "letter] for letter in _tiled(pattern, depth)"
    )
    right += "\n\ndef _tiled(pattern, depth):\n    return (pattern * depth)[:depth]\n"
    train = (ROOT / "docs/examples/first_minute/train.py").read_text(encoding="utf-8")
    repository(here, {"ours.py": right, "train.py": train, ".gitignore": "reports/\n__pycache__/\n"})
    git(here, "tag", "v1")
    for says, ours, script in (
        ("whole periods", wrong, train), ("cannot be imported", "import nowhere\n", train),
        ("imports nothing", wrong, train), ("a blank line", f"{wrong}\n", train),
        ("trains the head", wrong, train.replace("model[:3]", "model")),
    ):  # fmt: skip
        write(here, {"ours.py": ours, "train.py": script})
        git(here, "commit", "-q", "-a", "-m", says)
    return here


@pytest.mark.parametrize("name", [pytest.param(each, marks=slow) for each in ("bisect", "two-commits")])
def test_the_output_on_a_page_about_commits_equals_that_of_its_commands(name: str, history: Path) -> None:
    variables = environment(PATH=os.pathsep.join([str(RANKPROOF.parent), os.environ["PATH"]]), OMP_NUM_THREADS="1")
    for _, text in _blocks("history", ROOT / f"docs/{name}.md"):
        for part in text.removeprefix("$ ").split("\n$ "):
            command = re.match(r".*?(?:\n    .*?esac')?(?=\n|$)", part)
            done = subprocess.run(["bash", "-c", command[0]], cwd=history, env=variables, capture_output=True,
                                  text=True, check=False, timeout=280)  # fmt: skip
            assert done.returncode in (0, 1), done.stdout + done.stderr
            lines, at = [" ".join(line.split()) for line in done.stdout.splitlines()], 0
            for line in part[command.end() :].splitlines():
                if line.strip() not in ("", "…"):
                    at = _behind(_pattern(line, counts=False), lines, at)
                    assert at >= 0, f"{command[0]}: no {line!r} in\n{done.stdout}{done.stderr}"


def test_every_console_block_of_the_readme_is_run_or_says_why_not() -> None:
    text = README.read_text(encoding="utf-8")
    marked = len(README_RUNS) + len(re.findall(r"<!-- not run: \w.* -->\n```console\n", text))
    assert README_RUNS
    assert text.count("```console\n") == marked


def test_the_readme_is_short_and_its_trainer_is_the_example() -> None:
    assert len(README.read_bytes()) <= 8 * 1024
    assert FILES["train.py"] == (ROOT / "docs/examples/first_minute/train.py").read_text(encoding="utf-8")


def test_the_contract_of_contributing_is_judged_and_kills_its_mutant(tmp_path: Path) -> None:
    (check,), (mutant,) = ([text for _, text in _blocks(kind, CONTRIBUTING)] for kind in ("check", "mutant"))
    write(tmp_path, {"depths.py": check, "broken.py": mutant})
    told = "import depths, broken, sys; from contracts.harness.cli import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", told, "selftest", "--only", "PAT-13", "--with", "none"]
    done = ran(words, cwd=tmp_path, env=environment(), code=0)
    assert "1 of 1 mutants killed with their declared words" in done.stdout


def test_the_code_on_the_page_is_in_the_example() -> None:
    shown = _blocks("in")
    assert shown
    for name, text in shown:
        assert text in (TOY / name).read_text(encoding="utf-8"), f"{name} does not have\n{text}"


FORK = ROOT / "docs/examples/your_fork"
TITAN = ROOT / ".venv-torchtitan-0.3.0/bin"


def test_the_adapter_on_the_page_of_forks_equals_the_example() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/your-fork.md").read_text(encoding="utf-8"), re.DOTALL)
    assert (FORK / "our_titan.py").read_text(encoding="utf-8").endswith(f"\n\n\n{shown}")


@pytest.mark.titan
@pytest.mark.skipif(
    not TITAN.exists(), reason="torchtitan 0.3.0 is not installed: make its environment with `make titan`"
)
def test_the_adapter_of_a_fork_is_judged_on_the_checkout(tmp_path: Path) -> None:
    """A checkout of torchtitan 0.3.0, which decays no norm: it is judged by what the example declares."""
    found = subprocess.run([TITAN / "python", "-c", "import torchtitan; print(torchtitan.__path__[0])"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    shutil.copytree(found.stdout.strip(), tmp_path / "titan/torchtitan", ignore=shutil.ignore_patterns("__pycache__"))
    commit = repository(tmp_path / "titan", {".gitignore": "__pycache__\n", "assets/version.txt": "0.3.0\n"})
    words = ("check", "--stack", "our_titan:OurTitan", "--at", tmp_path / "titan", "--profile", "TOPO-02b,OPT-02a",
             "--report", tmp_path / "report")  # fmt: skip
    done = subprocess.run([TITAN / "rankproof", *words], cwd=FORK, env=environment(), capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    told = " ".join(done.stdout.split())
    assert f"our-titan 0.3.0+g{commit[:9]}, profile TOPO-02b,OPT-02a" in told, done.stdout + done.stderr
    assert f"Judged: torchtitan 0.3.0+g{commit[:9]}, commit {commit[:12]}" in told, done.stdout
    assert "undecayed nothing" in told, done.stdout
    assert "norm.weight decays by 0 … 0, expected 0.3" in told, done.stdout
    assert "Holds: 2 (TOPO 2)" in told, done.stdout
    assert done.returncode == 1


LOOP = ROOT / "docs/examples/accelerate_loop"
TRANSFORMERS = ROOT / ".venv-transformers-5.23.0/bin"


@pytest.mark.transformers
@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="make its environment with `make transformers`")
@pytest.mark.parametrize(("forgets", "code"), [(False, 0), (True, 1)])
def test_a_loop_over_accelerates_loaders_is_asked_for_its_order(tmp_path: Path, forgets: bool, code: int) -> None:
    """Until June 2026 a loader that skips batches began with the order of the first epoch (accelerate #4071)."""
    told = "import accelerate; print(accelerate.__path__[0])"
    found = subprocess.run([TRANSFORMERS / "python", "-c", told], capture_output=True, text=True, check=True)
    shutil.copytree(found.stdout.strip(), tmp_path / "accelerate", ignore=shutil.ignore_patterns("__pycache__"))
    loaders = tmp_path / "accelerate/data_loader.py"
    text = loaders.read_text(encoding="utf-8")
    assert text.count("iteration=dataloader.iteration,") == 2
    loaders.write_text(text.replace("iteration=dataloader.iteration,", "") if forgets else text, encoding="utf-8")
    words = ("check", "--stack", "loop_lane:Loop", "--profile", "PAR-06c", "--report", tmp_path / "report")
    done = subprocess.run([TRANSFORMERS / "rankproof", *words], cwd=LOOP, env=environment(PYTHONPATH=str(tmp_path)),
                          capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Holds: 2" in done.stdout or "their order is the same" in done.stdout, done.stdout


def test_every_mistake_on_the_page_gives_the_shown_output() -> None:
    assert CHANGES.keys() == {mistake for run in RUNS for mistake in run.mistakes}


@pytest.mark.slow
@needs_torch
def test_the_toy_trains(tmp_path: Path) -> None:
    command = [sys.executable, TOY / "trainer.py", "--steps", "8", "--save", tmp_path]
    done = ran(command, env=environment(OMP_NUM_THREADS="1"), code=0)
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert (tmp_path / "step_000008.pt").is_file()

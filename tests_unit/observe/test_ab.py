"""Two sides of a training script by one command: equal is equal, and what differs is named with its line."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests_unit._parties.running import ROOT, environment, invoked

torch = pytest.importorskip("torch")

from click.testing import Result  # noqa: E402

from contracts.harness.ab import command  # noqa: E402
from tests_unit.gate._browser import CHROMIUM, browser  # noqa: E402
from tests_unit.test_answering import checkout as repository  # noqa: E402
from tests_unit.test_answering import git  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

NET = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = torch.relu(self.up(x))
        return x + self.down(y)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
TRAIN = """\
import torch
from torch import nn

from net import Net

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
for step in range(8):
    rows = data[8 * step : 8 * step + 8]
    loss = nn.functional.mse_loss(model(rows), torch.zeros(8, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RANKS = TRAIN.replace("from torch import nn\n", "import torch.distributed as dist\nfrom torch import nn\n").replace(
    "model = Net()\n", 'dist.init_process_group("gloo")\nrank, world = dist.get_rank(), dist.get_world_size()\n'
    "model = nn.parallel.DistributedDataParallel(Net()) if world > 1 else Net()\n"
).replace("rows = data[8 * step : 8 * step + 8]", "rows = data[8 * step + rank : 8 * step + 8 : world]").replace(
    "zeros(8, 4)", "zeros(len(rows), 4)"
)  # fmt: skip
NEVER_REDUCES = RANKS.replace("nn.parallel.DistributedDataParallel(Net())", "Held(Net())").replace(
    "torch.manual_seed(0)\n",
    "class Held(nn.Module):\n    def __init__(self, module):\n        super().__init__()\n"
    "        self.module = module\n\n"
    "    def forward(self, x):\n        return self.module(x)\n\n\ntorch.manual_seed(0)\n",
)
PYTHON = ("--", sys.executable, "train.py")
TWO = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
Ab = Callable[..., Result]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of a trainer, whose first commit is `base`."""
    folder = tmp_path / "here"
    repository(folder, {"train.py": TRAIN, "net.py": NET, ".gitignore": "__pycache__/\nrows.pt\n"})
    git(folder, "tag", "base")
    monkeypatch.chdir(folder)
    for name, value in environment(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture
def ab(here: Path, tmp_path: Path) -> Ab:
    """Runs the command, and sees that the user's repository is what it was."""

    def run(*words: str, code: int | None = None) -> Result:
        before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file() and ".git" not in path.parts}
        done = invoked("ab", "--out", tmp_path / "out", *words, code=code)
        after = {path: path.read_bytes() for path in here.rglob("*") if path.is_file() and ".git" not in path.parts}
        assert before == after
        assert len(git(here, "worktree", "list").splitlines()) == 1
        return done

    return run


def _edit(file: Path, *edits: tuple[str, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


def test_a_refactoring_that_is_not_committed_is_equal(here: Path, ab: Ab) -> None:
    _edit(
        here / "net.py",
        ("import torch\n", "from more import activated\n"),
        ("torch.relu(self.up(x))", "activated(self.up, x)"),
    )
    (here / "more.py").write_text("def activated(layer, x):\n    return layer(x).relu()\n", encoding="utf-8")
    done = ab("--base", "base", *PYTHON, code=0)
    assert "with 2 changed files" in done.output
    last = done.stdout.splitlines()[-1]
    assert last.startswith("EQUAL: head does what base does; compared: 10 initial weights, 3 steps, ")


def test_another_number_is_named_with_its_tensor_and_its_line(here: Path, ab: Ab, tmp_path: Path) -> None:
    _edit(here / "net.py", ("x + self.down(y)", "x + 1.01 * self.down(y)"))
    git(here, "commit", "-q", "-a", "-m", "A factor")
    (here / "train.py").write_text("no Python", encoding="utf-8")  # --head: the working tree has no say
    done = ab("--base", "base", "--head", "HEAD", *PYTHON, code=1)
    assert (
        "at        net.py:13: return x + 1.01 * self.down(y) (changed, in Block, the class of blocks.0)" in done.output
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith("DIFFERENT: head from base, first in step 1, output of module: blocks.0: differs by ")
    assert last.endswith("; see net.py:13")
    told = json.loads((tmp_path / "out/ab.json").read_text(encoding="utf-8"))
    assert (told["word"], told["exit_code"], told["places"][0]["line"]) == ("different", 1, 13)
    assert told["comparison"]["differences"][0]["name"] == "blocks.0"
    assert {each["word"] for each in told["judged"].values()} == {"conformant"}
    first, second, *_ = (tmp_path / "out/ab.md").read_text(encoding="utf-8").splitlines()
    assert first.startswith("<!-- rankproof ")
    assert second.startswith("### DIFFERENT: head from base, first in step 1")

    _looked_at(tmp_path / "out/ab.html", tmp_path)


def _looked_at(file: Path, folder: Path) -> None:
    """The page marks one module, asks for nothing, and fits a browser's window."""
    text = file.read_text(encoding="utf-8")
    (marked,) = re.findall(r'<details open class="violated first"><summary>(.*?)</summary>', text)
    assert marked.startswith('<code>0</code> <span class="dim">Block</span>')
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", text)
    if CHROMIUM is None:
        return
    with browser(folder) as page:
        for width, dark in ((1400, False), (420, True)):
            page.open(file, width=width, dark=dark)
            assert page.run("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
            assert page.run("document.querySelector('.tree .first').offsetHeight") > 0, "the first difference is folded"
            assert page.complaints == []
            assert [each for each in page.requests if not each.startswith(("file:", "data:"))] == []


def test_other_settings_are_named_with_the_lines_that_changed(here: Path, ab: Ab) -> None:
    _edit(here / "train.py", ("lr=1e-3", "lr=2e-3"))
    last = ab("--base", "base", *PYTHON, code=1).stdout.splitlines()[-1]
    assert "settings of the optimizer: blocks.0.up.weight: learning rate 0.002" in last
    assert last.endswith("; see train.py:8")


def test_different_initial_weights_are_reported_and_both_sides_then_start_from_the_bases(here: Path, ab: Ab) -> None:
    _edit(here / "net.py", ("nn.Linear(width, 4)\n", "nn.Linear(width, 4)\n        nn.init.zeros_(self.head.bias)\n"))
    done = ab("--base", "base", *PYTHON, code=1)
    assert "weights   the sides draw different ones: head.bias; below, both begin with the base's" in done.output
    assert "from the base's weights\nEQUAL: the head does what the base does" in done.output
    assert "initial weights: head.bias" in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1].endswith("; see net.py:21")


def test_a_script_without_a_seed_is_compared_from_the_same_weights(here: Path, ab: Ab) -> None:
    _edit(here / "train.py", ("torch.manual_seed(0)\n", ""))
    git(here, "commit", "-q", "-a", "-m", "No seed")
    _edit(here / "net.py", ("torch.relu(self.up(x))", "self.up(x).relu()"))
    done = ab("--base", "HEAD", *PYTHON, code=0)
    assert "weights   they differ in every run (no seed?), blocks.0.up.weight first" in done.output


def test_ab_shows_the_error_of_a_side_that_fails_and_is_incomplete(here: Path, ab: Ab) -> None:
    _edit(here / "train.py", ("data = ", 'rows = torch.load("rows.pt")\ndata = '))
    git(here, "commit", "-q", "-a", "-m", "Reads rows")
    (here / "net.py").write_text("raise RuntimeError('no such kernel')\n", encoding="utf-8")
    torch.save(1, here / "rows.pt")
    done = ab("--base", "HEAD", *PYTHON, code=3)
    assert "No such file or directory: 'rows.pt'" in done.output
    assert "RuntimeError: no such kernel" in done.output
    assert "a checkout lacks what git ignores (rows.pt); if the script reads it: --link rows.pt" in done.output
    assert done.stdout.splitlines()[-1].startswith("INCOMPLETE: base: ended with exit code 1")


def test_ab_of_two_environments_names_both_torch_versions(here: Path, ab: Ab) -> None:
    _edit(here / "train.py", ("data = ", 'rows = torch.load("rows.pt")\ndata = '))
    torch.save(1, here / "rows.pt")
    done = ab(
        "--env",
        sys.executable,
        "--env",
        str(Path(sys.executable).parents[1]),
        "--link",
        "rows.pt",
        "--",
        "python",
        "train.py",
        code=0,
    )
    assert done.output.count(f"(torch {torch.__version__}, Python ") == 2
    assert "EQUAL: B does what A does" in done.output


@pytest.mark.parametrize("script", [RANKS, NEVER_REDUCES], ids=["reduces", "never-reduces"])
def test_ab_compares_a_layout_with_one_rank(here: Path, ab: Ab, script: str) -> None:
    (here / "train.py").write_text(script, encoding="utf-8")
    done = ab("--layout", "--steps", "2", *TWO)
    last = done.stdout.splitlines()[-1]
    if script is RANKS:
        assert done.exit_code == 0, done.output
        assert last.startswith("EQUAL: this layout does what one rank does")
    else:
        assert done.exit_code == 1, done.output
        assert "gradient: head.weight: rank 1 holds other bits than rank 0" in done.output
        assert re.search(r"new +OBS-02\[one-run\]: step 1: .*gradient", done.output), done.output


def test_a_base_that_runs_code_of_the_working_tree_is_incomplete(here: Path, ab: Ab) -> None:
    _edit(here / "train.py", ("from net", f"import sys\n\nsys.path.insert(0, {str(here)!r})\nfrom net"))
    git(here, "commit", "-q", "-a", "-m", "A path")
    _edit(here / "net.py", ("x + self.down(y)", "x + 1.01 * self.down(y)"))
    assert f"base: runs {here}/net.py, which is not in its checkout" in ab("--base", "HEAD", *PYTHON, code=3).output


def test_pythonpath_into_the_repository_is_moved_into_the_checkout(
    here: Path, ab: Ab, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(here, "mv", "-k", "net.py", "lib.py")
    (here / "lib").mkdir()
    (here / "lib.py").rename(here / "lib/net.py")
    git(here, "add", ".")
    git(here, "commit", "-q", "-a", "-m", "A folder")
    monkeypatch.setenv("PYTHONPATH", str(here / "lib"))
    _edit(here / "lib/net.py", ("x + self.down(y)", "x + 1.01 * self.down(y)"))
    assert ab("--base", "HEAD", *PYTHON, code=1).stdout.splitlines()[-1].endswith("; see lib/net.py:13")


def test_ab_refuses_all_wrong_options_at_once(here: Path, ab: Ab, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/held").touch()
    words = "--base nowhere --head neither --env /no/python --link gone --reference x -- make"
    done = ab(*shlex.split(words), code=2)
    said = [line.partition(": ")[2].split()[0] for line in done.stderr.splitlines()]
    assert [each.rstrip(":") for each in said] == ["sides", "out", "env", "reference", "command", "reference", "link",
                                                   "base", "head"]  # fmt: skip
    assert ab("--base", "nowhere", "--bisect", *PYTHON).exit_code == 255


@pytest.mark.parametrize(("broken", "code"), [("head", 125), ("base", 255)])
def test_bisect_skips_commits_that_cannot_be_tested(here: Path, ab: Ab, broken: str, code: int) -> None:
    if broken == "base":
        _edit(here / "train.py", ("model = ", "raise SystemExit(7)\nmodel = "))
        git(here, "commit", "-q", "-a", "-m", "Ends")
    else:
        _edit(here / "train.py", ("    optimizer.step()\n", ""))
    last = ab("--base", "HEAD", "--bisect", *PYTHON, code=code).stdout.splitlines()[-1]
    words = "no whole step was seen" if broken == "head" else "ended with exit code 7"
    assert last.startswith(f"INCOMPLETE: {broken}: "), last
    assert words in last


def test_a_stopped_ab_leaves_no_checkout(here: Path, tmp_path: Path) -> None:
    _edit(
        here / "train.py",
        ("model = ", "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)\nmodel = "),
    )
    git(here, "commit", "-q", "-a", "-m", "Sleeps")
    words = [sys.executable, "-P", "-m", "contracts.harness.cli", "ab", "--base", "HEAD", *PYTHON]
    with subprocess.Popen(words, cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)}) as run:
        begun = time.monotonic()
        while not (len(git(here, "worktree", "list").splitlines()) == 2 and _begun(here)):
            assert run.poll() is None
            assert time.monotonic() - begun < 240
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        assert run.wait(120) == 128 + signal.SIGTERM
    assert len(git(here, "worktree", "list").splitlines()) == 1


def _begun(here: Path) -> bool:
    trees = [line.split()[0] for line in git(here, "worktree", "list").splitlines()]
    return any(Path(each, "begun").exists() for each in trees)


OBSERVED: Mapping[str, str] = {
    "python train.py --lr 3": "python -m rankproof observe O train.py --lr 3",
    "python3.11 -u -X dev train.py": "python3.11 -u -X dev -m rankproof observe O train.py",
    "python -m ours.train -m x": "python -m rankproof observe O -m ours.train -m x",
    "torchrun --nproc-per-node 2 train.py a.py": "torchrun --nproc-per-node 2 -m rankproof observe O train.py a.py",
    "torchrun --module ours.train": "torchrun -m rankproof observe O -m ours.train",
    "torchrun --no-python python train.py": "torchrun --no-python python -m rankproof observe O train.py",
    "python -m torch.distributed.run --nproc-per-node=2 train.py":
        "python -m torch.distributed.run --nproc-per-node=2 -m rankproof observe O train.py",
    "srun -m cyclic python train.py": "srun -m cyclic python -m rankproof observe O train.py",
    "accelerate launch --cpu train.py": "accelerate launch --cpu -m rankproof observe O train.py",
    "deepspeed --num_gpus 2 train.py": "deepspeed --num_gpus 2 --module rankproof observe O train.py",
    "deepspeed --module ours.train": "deepspeed --module rankproof observe O -m ours.train",
}  # fmt: skip
ONE: Mapping[str, str | None] = {
    "torchrun --nproc-per-node 8 --nnodes 2 train.py --tp 2":
        "torchrun --standalone --nproc-per-node=1 train.py --tp 2",
    "torchrun --no-python --nproc-per-node 2 python -u train.py":
        "torchrun --standalone --nproc-per-node=1 --no-python python -u train.py",
    "python -m torch.distributed.run --nproc-per-node=2 -m ours.train":
        "python -m torch.distributed.run --standalone --nproc-per-node=1 -m ours.train",
    "python train.py --torchrun": None,
}  # fmt: skip


@pytest.mark.parametrize("words", OBSERVED)
def test_ab_inserts_observe_before_the_script(words: str) -> None:
    assert shlex.join(command.observed(shlex.split(words), ["O"])) == OBSERVED[words]


@pytest.mark.parametrize("words", ONE)
def test_one_rank_is_the_command_with_other_options_of_torchrun(words: str) -> None:
    found = command.on_one_rank(shlex.split(words))
    assert (found and shlex.join(found)) == ONE[words]


@pytest.mark.parametrize("words", ["make train", "python -c pass", "python", "./train"])
def test_a_command_without_a_script_is_not_observed(words: str) -> None:
    assert command.script_at(shlex.split(words)) is None

"""The nano script, unmodified, on 1, 2 and 4 ranks: legal layouts agree, a planted bug is named first."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests_unit._parties.running import Done, invoked, ran

torch = pytest.importorskip("torch")


from contracts.observe.diff import compare  # noqa: E402
from contracts.observe.merged import Merged  # noqa: E402
from contracts.observe.trace import read  # noqa: E402
from contracts.stacks.reference.answers.observing import observe  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NANO = ROOT / "docs/examples/observe_nano.py"
ALONE = {each: value for each, value in os.environ.items()
         if each not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}  # fmt: skip
HERE = {**ALONE, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _observed(
    out: Path, script: Path, ranks: int, words: Sequence[str] = (), *, code: int | None = None,
    options: Sequence[str] = (), cwd: Path = ROOT,
) -> Done:  # fmt: skip
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher = [*torchrun, "--no-python", sys.executable]
    command = [sys.executable, *(launcher if ranks > 1 else []), "-P", "-m", "contracts.harness.cli", "observe"]
    return ran([*command, "--out", out, *options, script, *words], code=code, cwd=cwd, env=HERE)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of the unmodified script: one rank, DDP on two, FSDP2 on two and on four, and one rank perturbed."""
    folder = tmp_path_factory.mktemp("traces")
    runs: Mapping[str, tuple[int, Sequence[str], Sequence[str]]] = {
        "one": (1, (), ()),
        "moved": (1, (), ("--perturb", "1")),
        "fsdp4": (4, ("--parallel", "fsdp2"), ()),
    }
    for name, (ranks, words, options) in runs.items():
        done = _observed(folder / name, NANO, ranks, [*words, "--steps", "2"], options=options, code=0)
        assert "step 1: loss" in done.stdout
    assert observe(folder, (str(NANO), "--parallel", "ddp", "--steps", "2"), folder / "ddp2", 2) == [0, 0]
    return folder


@pytest.mark.parametrize("layout", ["ddp2", "fsdp4"])
def test_a_correct_layout_equals_one_rank_and_violates_nothing(traces: Path, tmp_path: Path, layout: str) -> None:
    assert "agrees  step 2: updated weights (28)" in invoked("diff", traces / "one", traces / layout, code=0).output
    invoked("judge", traces / layout, "--report", tmp_path / "report", code=0)


@pytest.mark.parametrize("original", [True, False])
def test_fsdp1_equals_one_rank_and_violates_nothing(traces: Path, tmp_path: Path, original: bool) -> None:
    text = NANO.read_text(encoding="utf-8")
    for old, new in (
        ("import fully_shard\n", "import FullyShardedDataParallel, fully_shard, wrap\n"),
        ("= DistributedDataParallel(model)", "= FullyShardedDataParallel(model, use_orig_params=ORIGINAL, device_id="
         "torch.device('cpu'), auto_wrap_policy=wrap.ModuleWrapPolicy({Block}))".replace("ORIGINAL", str(original))),
        ("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "(model.clip_grad_norm_ if world > 1 else None)(1.0)"),
    ):  # fmt: skip
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    codes = observe(tmp_path, ("train.py", "--parallel", "ddp", "--steps", "2"), tmp_path / "out", 2)
    assert codes == [0, 0], (tmp_path / "stderr-0").read_text()
    assert "agrees  step 2: updated weights (28)" in invoked("diff", traces / "one", tmp_path / "out", code=0).output
    invoked("judge", tmp_path / "out", "--report", tmp_path / "report", code=0)


def test_measured_rounding_is_the_allowed_difference(traces: Path) -> None:
    one, ddp, moved = (Merged(read(traces / each)) for each in ("one", "ddp2", "moved"))
    assert not compare(one, ddp, [moved]).differences
    weights, perturbed = one.tensors("weight", 1), moved.tensors("weight", 1)
    apart = [
        float((each.sketch - perturbed[name].sketch).norm()) / each.norm for name, each in weights.items() if each.norm
    ]
    assert 0 < min(apart) <= max(apart) < 2**-22


BUGS = {  # words of the script → what stands there instead; layout; where the diff must point first
    "a-layer-is-not-synced": (
        "    optimizer = torch", "    model.module.blocks[1].up.weight.data.mul_(1 + rank)\n    optimizer = torch",
        "ddp",
        "step 1, initial weights: blocks.1.up.weight: rank 1 holds other bits than rank 0",
    ),
    "gradients-are-not-averaged": (
        "        loss = model(text[:, :-1], text[:, 1:])\n        loss",
        "        with model.no_sync():\n            loss = model(text[:, :-1], text[:, 1:])\n        loss",
        "ddp", "step 1, gradient: ln_f.weight: rank 1 holds other bits than rank 0",
    ),
    "a-rank-has-another-rate": (
        "lr=1e-3", "lr=1e-3 * (1 + rank)", "ddp",
        "step 1, settings of the optimizer: wte.weight: learning rate 0.002 and decay 0.1 on rank 1",
    ),
    "a-gradient-is-doubled-on-shards": (
        "        optimizer.step()", "        model.blocks[0].qkv.weight.grad.mul_(2)\n        optimizer.step()",
        "fsdp2",
        "step 1, gradient: blocks.0.qkv.weight: differs by",
    ),
    "a-residual-is-scaled": (
        "return x + self.down", "return x + 1.01 * self.down", "fsdp2",
        "step 1, output of module: blocks.0: differs by",
    ),
    "every-rank-reads-all-rows": ("[rank::world]", "[:]", "ddp", "step 1: the inputs differ: 8 rows and 16 rows"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_first_finding_names_the_planted_bug(traces: Path, tmp_path: Path, bug: str) -> None:
    old, new, parallel, words = BUGS[bug]
    text = NANO.read_text(encoding="utf-8")
    assert text.count(old) == 1
    (tmp_path / "train.py").write_text(text.replace(old, new), encoding="utf-8")
    codes = observe(tmp_path, ("train.py", "--parallel", parallel, "--steps", "1"), tmp_path / "out", 2)
    assert codes == [0, 0], (tmp_path / "stderr-0").read_text()
    done_diff = invoked("diff", traces / "one", tmp_path / "out")
    assert words in done_diff.output.strip().splitlines()[-1], done_diff.output
    assert done_diff.exit_code == (3 if "inputs" in words else 1)


def test_a_users_package_called_contracts_and_the_suites_do_not_shadow_each_other(tmp_path: Path) -> None:
    own = tmp_path / "contracts"
    own.mkdir()
    (own / "__init__.py").write_text("WHOSE = 'the user'")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, contracts\nprint(contracts.WHOSE, sys.argv, __name__, sys.path[0])\n"
        "import torch\nnet = torch.nn.Linear(3, 1)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(2):\n    opt.zero_grad()\n    net(torch.ones(2, 3)).sum().backward()\n    opt.step()\n"
    )
    done = _observed(tmp_path / "out", script, 1, ["--steps", "7", "-m"], cwd=tmp_path)
    assert done.stdout == f"the user ['{script}', '--steps', '7', '-m'] __main__ {tmp_path}\n", done.stderr
    assert Merged(read(tmp_path / "out")).steps == 2


def test_ranks_that_hang_are_aborted_with_their_stack_traces(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nif __name__ == '__main__':\n    time.sleep(900)\n")
    assert observe(tmp_path, ("train.py",), tmp_path / "out", 2, seconds=3) == [-signal.SIGABRT] * 2
    for rank in range(2):
        assert "most recent call first" in (tmp_path / f"stderr-{rank}").read_text()


def test_a_run_that_dies_leaves_a_trace_that_says_so_and_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nnet = torch.nn.Linear(3, 1)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "net(torch.ones(2, 3)).sum().backward()\nopt.step()\n"
        "raise ValueError('the key hf_abcdefghijklmnopqrstuvwxyz012345 is refused')\n"
    )
    assert "ValueError" in _observed(tmp_path / "out", script, 1, ["--api-key", "sesame-open-up"], code=1).stderr
    text = (tmp_path / "out/rank-00000.jsonl").read_text()
    assert "hf_abcdefgh" not in text
    assert "sesame" not in text
    judged = invoked("judge", tmp_path / "out", "--report", tmp_path / "report", code=1)
    assert "rank 0 ended with ValueError" in judged.output
    assert json.loads(text.splitlines()[-1])["steps"] == 1
    _observed(tmp_path / "out", script, 1, code=2)  # a second trace does not overwrite the first
    _observed(tmp_path / "new", tmp_path / "no.py", 1, code=2)


def test_an_error_of_a_script_is_shown_without_frames_of_the_suite(tmp_path: Path) -> None:
    """click says "Aborted!" to an EOFError, and not where it was raised."""
    script = tmp_path / "train.py"
    script.write_text("raise EOFError('Ran out of input')\n")
    done = _observed(tmp_path / "out", script, 1, code=1)
    assert f'File "{script}", line 1' in done.stderr
    assert done.stderr.strip().endswith("EOFError: Ran out of input")


def test_a_trace_that_another_must_equal_is_read_before_anything_is_judged(tmp_path: Path) -> None:
    words = ("--like", "plain", str(tmp_path / "no"), "--like", "plain", str(tmp_path / "none"))
    done = invoked("judge", tmp_path, *words, code=2)
    assert "like = 'plain': is given 2 times" in done.output
    assert done.output.count("holds no trace") == 3


def test_weights_from_starts_a_run_with_the_weights_of_another(
    tmp_path: Path,
) -> None:
    """Shards draw other weights than the whole; after those of one rank, one gradient is off in one element."""
    script, text = tmp_path / "train.py", NANO.read_text(encoding="utf-8")
    kept = ("--keep-weights", "--full", "blocks.0.qkv.*")
    _observed(tmp_path / "one", NANO, 1, ["--steps", "1"], options=kept, code=0)
    for old, new in (
        ("manual_seed(1337)", "manual_seed(rank)"),
        (
            "        optimizer.step()",
            "        if rank:\n            model.blocks[0].qkv.weight.grad.to_local()[2, 5] += 1\n"
            "        optimizer.step()",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    script.write_text(text, encoding="utf-8")
    begins = ("--weights-from", str(tmp_path / "one"), "--full", "blocks.0.qkv.*")
    _observed(tmp_path / "two", script, 2, ["--steps", "1", "--parallel", "fsdp2"], options=begins, code=0)
    said = invoked("diff", tmp_path / "one", tmp_path / "two").output
    assert "agrees  step 1: initial weights (28)" in said
    assert "first in step 1, gradient: blocks.0.qkv.weight: differs by" in said
    assert "of 3072 elements differ, most at [50, 5]: " in said  # rank 1 has rows 48 to 95
    refused = _observed(
        tmp_path / "no", NANO, 1, options=("--weights-from", str(tmp_path / "two"), "--steps", "0"), code=2
    )
    assert "kept 2 of 28 weights" in refused.stderr
    assert "must be at least 1" in refused.stderr


RECEIVES = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

class Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx, begin):
        dist.recv(x := torch.empty(4, 8, 16), 0)
        return x
    @staticmethod
    def backward(ctx, g):
        dist.send(g.contiguous(), 0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        if rank == 0:
            self.embed, self.up = nn.Embedding(64, 16), nn.Linear(16, 16)
        if rank == world - 1:
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 64, bias=False)
        if world == 1:
            self.head.weight = self.embed.weight
    def forward(self, ids=None, labels=None):
        x = Received.apply(torch.zeros(1, requires_grad=True)) if ids is None else self.up(self.embed(ids))
        if labels is None:
            dist.send(x.detach(), 1)
            return x
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten()) / 2

if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(rank)
net = Net()
opt = torch.optim.AdamW(net.parameters())
for step in range(2):
    torch.manual_seed(10 + step)
    for rows in torch.randint(64, (2, 4, 9)):
        found = net(**({} if rank else {"ids": rows[:, :-1]}), **({} if rank < world - 1 else {"labels": rows[:, 1:]}))
        if rank < world - 1:
            dist.recv(g := torch.empty_like(found), 1)
        found.backward(None if rank == world - 1 else g)
    if world > 1 and "apart" not in sys.argv:
        dist.all_reduce((net.head if rank else net.embed).weight.grad)
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize(("words", "code", "last"), [
    ((), 0, "4 outputs, 2 losses, 10 gradients"),
    (("apart",), 1, "first in step 1, gradient: embed.weight: differs by"),
])  # fmt: skip
def test_a_stage_that_receives_its_stream_inside_and_has_a_copy_of_a_tied_weight(
    tmp_path: Path, words: Sequence[str], code: int, last: str
) -> None:
    """nanotron's pipelines are such: the last stage is given labels, which are no other rows."""
    (tmp_path / "train.py").write_text(RECEIVES)
    _observed(tmp_path / "one", tmp_path / "train.py", 1, options=["--keep-weights"], code=0)
    begins = ("--weights-from", str(tmp_path / "one"))
    _observed(tmp_path / "two", tmp_path / "train.py", 2, words, options=begins, code=0)
    said = invoked("diff", tmp_path / "one", tmp_path / "two", code=code).output
    assert last in said.splitlines()[-1], said
    invoked("judge", tmp_path / "two", "--report", tmp_path / "report", code=0)


def test_two_torchrun_agents_write_one_trace_of_two_nodes(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("", 0))
        port = held.getsockname()[1]
    observing = ["-P", "-m", "contracts.harness.cli", "observe", "--out", tmp_path / "out", NANO, "--parallel", "ddp"]
    agents = []
    for node in range(2):
        launch = ["--nnodes=2", f"--node-rank={node}", f"--master-port={port}", "--nproc-per-node=1", "--no-python"]
        command = [sys.executable, "-m", "torch.distributed.run", *launch, sys.executable, *observing, "--steps", "1"]
        with (tmp_path / f"agent-{node}").open("w") as said:
            agents.append(subprocess.Popen(command, cwd=ROOT, env=HERE, stdout=said, stderr=said))
    assert [each.wait(timeout=300) for each in agents] == [0, 0], (tmp_path / "agent-0").read_text()
    trace = read(tmp_path / "out")
    assert (trace.world, len(trace.ranks), Merged(trace).steps) == (2, 2, 1)
    invoked("judge", tmp_path / "out", "--report", tmp_path / "report", code=0)


def test_a_run_that_torchrun_restarts_has_a_trace_of_its_own(tmp_path: Path) -> None:
    script, env = tmp_path / "train.py", {**HERE, "TORCHELASTIC_RUN_ID": "night", "TORCHELASTIC_MAX_RESTARTS": "1"}
    script.write_text("raise SystemExit(3)\n")
    command = [sys.executable, "-P", "-m", "contracts.harness.cli", "observe", "--out", tmp_path / "out", script]
    for attempt in ("0", "1"):
        env["TORCHELASTIC_RESTART_COUNT"] = attempt
        assert subprocess.run(command, env=env, timeout=300, check=False).returncode == 3
    runs = [read(tmp_path / each).ranks[0].begin["run"] for each in ("out", "out-restart-1")]
    assert runs == ["night/0", "night/1"]


def test_a_script_is_not_changed_by_being_observed(tmp_path: Path) -> None:
    """Dropout, recomputation, keyword inputs: the numbers are the script's own, each output counts once."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.checkpoint import checkpoint\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.drop = nn.Linear(3, 3), nn.Dropout(0.5)\n"
        "    def forward(self, *, x):\n"
        "        return checkpoint(lambda y: self.drop(self.a(y)), x, use_reentrant=False).sum()\n"
        "torch.manual_seed(1)\nnet = Net()\nopt = torch.optim.Adam(net.parameters())\n"
        "for _ in range(3):\n    opt.zero_grad()\n    net(x=torch.randn(4, 3)).backward()\n    opt.step()\n"
        "print(net.a.weight.tolist(), torch.rand(()).item())\n"
    )
    plain = subprocess.run([sys.executable, script], env=HERE, capture_output=True, text=True, timeout=300, check=True)
    assert _observed(tmp_path / "out", script, 1).stdout == plain.stdout
    merged = Merged(read(tmp_path / "out"))
    assert len([line for _, line in merged.lines("forward", 1) if line["name"] == "a"]) == 1
    assert len(merged.rows(1)) == 4
    assert all(line["drawn"] for _, line in merged.lines("drawn", 1))

"""A process that observes itself, a Trainer that does so by a callback, and a verdict in a tracker."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests_unit._parties.running import ROOT, environment, invoked, ran

torch = pytest.importorskip("torch")

from torch import multiprocessing, nn  # noqa: E402
from torch.nn.modules import module as hooks  # noqa: E402

import rankproof  # noqa: E402
from contracts.observe.trace import read  # noqa: E402
from contracts.spec import Refused  # noqa: E402
from rankproof import callbacks, trackers  # noqa: E402

pytestmark = [pytest.mark.unit, pytest.mark.slow]

TRAIN = """\
import torch
from torch import nn


def train(steps=3, fails=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        loss = net(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert not (fails and step), "step 2 fails"
"""
LIGHTNING = """\
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main():
    L.seed_everything(1)
    rows = TensorDataset(torch.randn(32, 8))
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    trainer = L.Trainer(max_steps=3, accelerator="cpu", devices=1, **quiet)
    trainer.fit(Net(), DataLoader(rows, batch_size=8))


if __name__ == "__main__":
    main()
"""


def _train(**options: Any) -> None:
    names: dict[str, Any] = {}
    exec(compile(TRAIN, "train.py", "exec"), names)  # the text that the script has
    names["train"](**options)


def _run(*words: str, cwd: Path) -> None:
    ran([sys.executable, *words], cwd=cwd, env=environment(OMP_NUM_THREADS="1"), limit_s=280, code=0)


def _equal(one: Path, other: Path) -> None:
    assert re.search(r"; compared: \d+ initial weights, 3 steps, ", invoked("diff", one, other, code=0).output)


def test_a_process_that_observes_itself_says_what_observe_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{TRAIN}\n\ntrain()\n", encoding="utf-8")
    _run("-m", "rankproof", "observe", "--out", "script", "train.py", cwd=tmp_path)
    with rankproof.observing(tmp_path / "inside"):
        _train()
    _equal(tmp_path / "script", tmp_path / "inside")
    with pytest.raises(Refused, match="holds a trace of rank 0"), rankproof.observing(tmp_path / "inside"):
        pass


def test_an_error_while_observing_is_reported_and_removes_every_hook(tmp_path: Path) -> None:
    before = len(hooks._global_forward_pre_hooks), torch.autograd.backward
    with pytest.raises(AssertionError, match="step 2 fails"), rankproof.observing(tmp_path / "x", steps=5):
        _train(fails=True)
    assert (len(hooks._global_forward_pre_hooks), torch.autograd.backward) == before
    end = read(tmp_path / "x").ranks[0].end
    assert (end["steps"], end["error"].splitlines()[0]) == (2, "AssertionError: step 2 fails")


def test_only_the_steps_that_were_asked_for_are_observed(tmp_path: Path) -> None:
    with rankproof.observing(tmp_path / "x", steps=1, keep_weights=True):
        _train()
    trace = read(tmp_path / "x")
    assert trace.ranks[0].begin["command"] == sys.argv[:1]
    assert [line["step"] for line in trace.ranks[0].of("step")] == [1]
    assert [bool(line.get("values")) for line in trace.ranks[0].of("weight") if line["step"] == 1] == [True] * 4


def _rank(rank: int, out: str) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=2)
    torch.manual_seed(0)
    with rankproof.observing(out):
        net = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for step in range(3):
            net(torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    distributed.destroy_process_group()


def test_ranks_of_another_launcher_write_one_trace(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path / "two"),), nprocs=2)
    assert "on 2 ranks" in invoked("judge", tmp_path / "two", "--report", tmp_path / "judged", code=0).output


def _called(folder: Path, text: str, named: str, old: str, new: str) -> None:
    """A script observed from outside, and the same one by a callback."""
    assert text.count(old) == 1
    (folder / "plain.py").write_text(text, encoding="utf-8")
    text = f"from rankproof.callbacks import {named}\n{text.replace(old, new)}"
    (folder / "by.py").write_text(text, encoding="utf-8")
    _run("by.py", cwd=folder)
    _run("-m", "rankproof", "observe", "--out", "plain", "plain.py", cwd=folder)
    _equal(folder / "plain", folder / "called")


def test_a_trainer_of_transformers_observes_itself_by_a_callback(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text = (ROOT / "contracts/stacks/scripts/train_transformers.py").read_text(encoding="utf-8")
    old = "eval_dataset=rows[:16])"
    new = 'eval_dataset=rows[:16], callbacks=[transformers_callback("called")])'
    _called(tmp_path, text, "transformers_callback", old, new)


def test_a_trainer_of_lightning_observes_itself_by_a_callback(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    new = 'devices=1, callbacks=[lightning_callback("called")]'
    _called(tmp_path, LIGHTNING, "lightning_callback", "devices=1", new)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that never empties its gradients."""
    folder = tmp_path_factory.mktemp("report")
    with rankproof.observing(folder / "x"):
        net = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for _ in range(3):
            net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    invoked("judge", folder / "x", "--report", folder / "judged", code=1)
    return folder / "judged"


def test_a_verdict_is_written_to_tensorboard(report: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        trackers.to_tensorboard(report, writer, step=7)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in found.Scalars("rankproof/violated")] == [(7, 1.0)]
    assert "rankproof/holds" in found.Tags()["scalars"]
    (text,) = found.Tensors("rankproof/verdict/text_summary")
    assert b"OBS-03" in text.tensor_proto.string_val[0]


def test_a_verdict_is_written_to_mlflow(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its other stores need a database
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    with mlflow.start_run() as run:
        trackers.to_mlflow(report, step=7)
    kept = mlflow.get_run(run.info.run_id).data.metrics
    assert (kept["rankproof/violated"], kept["rankproof/exit_code"]) == (1.0, 1.0)
    names = {each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id, "rankproof")}
    assert names == {"rankproof/report.html", "rankproof/summary.md"}


def test_a_folder_without_a_verdict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        trackers.to_tensorboard(tmp_path, None)


def test_a_configuration_of_olmo_core_keeps_its_callback() -> None:
    """It is made anew of names and fields when words of the command line are merged into it."""
    trains = pytest.importorskip("olmo_core.train", reason="pip install ai2-olmo-core")
    config = trains.TrainerConfig(save_folder="out")
    config = config.with_callback("rankproof", callbacks.olmo_core_callback("runs/x", steps=2))
    kept = config.merge(["save_overwrite=true"]).callbacks["rankproof"]
    assert (type(kept).__name__, kept.out, kept.options) == ("OLMoCoreCallback", "runs/x", {"steps": 2})
    assert isinstance(kept, trains.callbacks.Callback)

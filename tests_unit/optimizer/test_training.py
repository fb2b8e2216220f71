"""The reference's optimizer, data and trainer command, also in real processes."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.court.judge import judge
from contracts.harness import telemetry
from contracts.instruments import provenance
from contracts.instruments.oracles import optimizers as oracle
from contracts.instruments.ranks import Place
from contracts.law._support.recipes import SMALL
from contracts.spec import FLOAT64, Data, Execution, Lane, Mode, Optim, Recipe, Refused, Reread, Session, Trained
from contracts.spec.devices import Started, StartOptions
from contracts.spec.presets import PRESETS
from contracts.spec.receipt import Backend
from contracts.stacks.reference import train
from contracts.stacks.reference.answers.devices import arguments
from contracts.stacks.reference.data import Corpus
from contracts.stacks.reference.launch import trainer_arguments
from contracts.stacks.reference.launch.launch import launch
from contracts.stacks.reference.optim.optimizer import Member, Optimizer, orthogonalise
from contracts.stacks.reference.stack import Reference
from contracts.stacks.reference.training import settings
from contracts.stacks.reference.training.run_facts import RankReporter, merge_backends
from contracts.stacks.reference.training.trainer import Trainer
from tests_unit._parties.law import LAW
from tests_unit._parties.running import ran

torch.set_num_threads(1)


def test_muon_turns_a_zero_matrix_into_zeros() -> None:
    assert not bool(orthogonalise(torch.zeros(2, 3, 4)).any())


@pytest.mark.parametrize("shape", [(20, 12), (12, 20)])
def test_torchs_muon_equals_the_oracle_to_bfloat16_accuracy(shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(7)
    start, *gradients = (torch.randn(shape, generator=draw) for _ in range(4))
    held, moved = torch.nn.Parameter(start.clone()), [start.double()]
    stepped = torch.optim.Muon([held], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        held.grad = gradient.clone()
        stepped.step()
        moved.append(held.detach().double())
    given = [each.double() for each in gradients]
    wanted = [moved[0], *oracle.muon(moved[0], given, [0.01] * 3, decay=0.1)]
    for old, new, before, after in zip(moved, moved[1:], wanted, wanted[1:], strict=False):
        off = ((new - old) - (after - before)).norm() / (after - before).norm()
        assert 1e-4 < off < 0.05, off  # without Nesterov's momentum it is 0.3


def test_an_optimizer_refuses_a_parameter_given_twice() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    twice = [Member(name=name, parameter=parameter, role="matrix", layer=0) for name in ("one", "other")]
    with pytest.raises(Refused, match="other"):
        Optimizer(Optim(), twice)


def test_the_shipped_text_can_be_learnt_and_has_many_documents() -> None:
    corpus = Corpus(replace(SMALL, vocab=256, seq_length=128))
    assert len(corpus) > 300
    tokens, labels, documents = corpus.sequence(5)
    assert tokens.shape == labels.shape == documents.shape == (1, 128)
    assert corpus.stream.count(b"\n\n") > 150
    assert set(corpus.stream) < set(range(10, 127))


def test_a_text_shorter_than_a_sequence_wraps_around(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    corpus = Corpus(replace(SMALL, vocab=256, seq_length=5, data=Data(path=str(path))))
    assert len(corpus) == 1
    assert bytes(corpus.sequence(0)[0][0].tolist()) == b"abcab"
    path.write_bytes(b"a")
    with pytest.raises(Refused, match="fewer than two bytes"):
        Corpus(replace(corpus.recipe, data=Data(path=str(path.rename(tmp_path / "other")))))


def test_a_missing_data_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"data\.path.*cannot be read"):
        Corpus(replace(SMALL, data=Data(path=str(tmp_path / "nothing"))))


# the command
SHORT = ("--recipe", "tiny-nam52", "--set", "dtype=fp32", "--set", "depth=3", "--set", "seq_length=32",
         "--set", "batch.total=4")  # fmt: skip


@pytest.mark.slow
def test_the_command_resumes_in_another_process_and_leaves_a_receipt(tmp_path: Path) -> None:
    whole = Trainer(train.read(SHORT, {}).asked.recipe, Execution(microbatches=2))
    losses = []
    for number in range(1, 5):
        losses.append(whole.next().losses["lm"])
        if number == 2:
            folder = tmp_path / "run" / "checkpoints"
            folder.mkdir(parents=True)
            whole.save(str(folder))
    words = ("-m", "contracts.stacks.reference.train", *SHORT, "--steps", "4", "--save", "run", "--resume")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    assert "step 4/4" in ran([sys.executable, *words], cwd=tmp_path, env=env, limit_s=240, code=0).stderr
    receipt = json.loads((tmp_path / "run" / "receipt-00000003-00000004.json").read_text())
    witness = receipt["witness"]
    assert (receipt["ending"], witness["steps"]) == ("ok", 2)
    assert [witness["first_loss"], witness["last_loss"]] == losses[2:]
    assert receipt["provenance"]["loaded"] == []
    assert whole.parts.checkpoints(folder).steps() == (2, 4)


def test_the_command_reports_each_step_to_its_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "telemetry"
    monkeypatch.setenv("RANKPROOF_TELEMETRY", str(told))
    assert train.main((*SHORT, "--steps", "2", "--save", str(tmp_path / "run"))) == 0
    heard = telemetry.read(told)
    assert heard.lost == 0
    assert [step.number for step in heard.steps] == [1, 2]
    assert all(step.tokens > 100 and step.loss for step in heard.steps)
    assert [(place.local_rank, row.rank) for place, row in zip(heard.places, heard.memory, strict=True)] == [(0, 0)]
    assert heard.memory[0].allocated > 2**26, "torch alone takes more"
    experts = next(row for row in heard.backends if row.part == "experts")
    assert (experts.requested, experts.actual) == ("torch-grouped", "native")
    assert experts.reason is not None, "the recipe is float32, and the receipt says nothing of it"
    assert "fp32" in experts.reason
    assert not list((tmp_path / "run").glob("receipt-*")), "the launcher writes the receipt"


def test_a_run_that_fails_leaves_a_receipt_that_says_so(tmp_path: Path) -> None:
    record = train.Record(
        started="2026-11-21T00:00:00+00:00",
        taken=replace(provenance.take(folder=tmp_path, host=None, devices=0), loaded=()),
    )
    asked = train.read((*SHORT, "--steps", "3", "--save", str(tmp_path / "run")), {})
    train.train(replace(asked, steps=1), record)
    path = train.keep_receipt(asked, record, "failed", "RuntimeError: out of luck")
    receipt = json.loads(path.read_text())
    assert (receipt["ending"], receipt["exit_code"], receipt["failure"]) == ("failed", 1, "RuntimeError: out of luck")


class _Breaks(RankReporter):
    """The second step fails on this rank, which is the second of two as far as its receipt is named."""

    mark = "-rank00001"

    def timed_step(self, step: Callable[[], Any]) -> tuple[Any, float]:
        done = super().timed_step(step)
        if done[0].number == 2:
            raise RuntimeError("out of luck")
        return done


def test_a_failing_rank_prints_its_error_with_its_rank(tmp_path: Path) -> None:
    taken = replace(provenance.take(folder=tmp_path, host=None, devices=0), loaded=())
    record = train.Record(started="2026-11-21T00:00:00+00:00", taken=taken)
    asked = train.read((*SHORT, "--steps", "3", "--save", str(tmp_path / "run")), {})
    with pytest.raises(RuntimeError, match="out of luck"):
        train.train(asked, record, _Breaks(Place(rank=0, world=1, node=0, local_rank=3)))
    path = train.keep_receipt(asked, record, "failed", "RuntimeError: out of luck")
    assert path.name == "receipt-00000001-00000001-rank00001.json"
    receipt = json.loads(path.read_text())
    assert receipt["places"] == [{"local_rank": 3, "device": None, "bus": None, "nic": None}]
    assert receipt["peak"]["allocated"] > 2**26, "torch alone takes more"


def test_differing_backends_are_named_by_rank() -> None:
    grouped = Backend(part="experts", requested="torch-grouped", actual="torch-grouped")
    alone = replace(grouped, actual="native", reason="sm_70")
    scan = Backend(part="scan", requested="native", actual="native")
    said = merge_backends([(grouped, scan), (alone, scan), (grouped, scan)])
    assert said[1] == scan
    assert said[0].actual == "torch-grouped on rank 0, 2; native on rank 1"
    assert (said[0].requested, said[0].reason) == ("torch-grouped", "sm_70")


class _Noting(Reference):
    """Starts nothing, and notes what the command would be given."""

    def __init__(self) -> None:
        self.words: set[str] = set()

    def started(self, recipe: Recipe, environment: Mapping[str, str], steps: int, options: StartOptions) -> Started:
        self.words |= {*arguments(recipe, steps, options)}
        return Started(exit_code=0, steps=steps, words="")

    def read_back(self, argv: tuple[str, ...]) -> Reread:
        self.words |= {*argv}
        return super().read_back(argv)


SHOWN = {"--log-every": "it changes only what is printed", "--device": "`started` chooses it by RANKPROOF_DEVICE"}


def test_every_option_of_the_command_is_given_in_a_contract() -> None:
    usage = settings.parser({}).format_usage() + trainer_arguments.parser().format_usage()
    noting = _Noting()
    for contract in LAW.contracts.values():
        for case in contract.cases if {"started", "read_back"} & {*contract.asks} else ():
            judge(contract, case, noting)
    given = {word.partition("=")[0] for word in noting.words}
    assert {*re.findall(r"--[a-z-]+", usage)} - given == {*SHOWN}


@pytest.mark.parametrize(("words", "mode"), [(("--mode=author_dp",), "author_dp"), ((), "nemo_native")])
def test_the_mode_is_the_recipes_first_unless_it_is_given(words: tuple[str, ...], mode: str) -> None:
    assert settings.read(("--recipe=nam56r_h200_bf16_v1", *words), {}).asked.mode == mode


def test_keeping_zero_checkpoints_is_refused() -> None:
    with pytest.raises(Refused, match="--keep = 0: must be at least 1"):
        train.read((*SHORT, "--keep", "0"), {})


def test_unknown_options_and_missing_ranks_end_the_trainer_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(("--recipe", "tiny-nam52", "--stepz", "3")) == 2
    assert "--stepz" in capsys.readouterr().err
    assert train.main(("--recipe", "tiny-nam52", "--tp", "2", "--sp")) == 2
    assert "world = 1: must be a multiple of" in capsys.readouterr().err
    assert train.main(("--recipe", "tiny-nam52", "--resume")) == 2
    assert "needs the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["nemo_native", "author_dp"])
def test_the_trainer_reads_back_the_argv_of_a_launch(mode: Mode) -> None:
    recipe = PRESETS["tiny-nam56r"]
    lane = Lane(mode=mode, regime="fsdp2", gpus=4, overrides={"optim.lr": "1e-4", "optim.rule": "muon"})
    launched = launch(recipe, lane)
    read = train.read((*launched.argv, "--log-every", "5"), {})
    assert read.asked.recipe.optim == replace(recipe.optim, lr=1e-4, rule="muon")
    assert (read.asked.mode, read.asked.degrees, read.log_every) == (mode, launched.degrees, 5)


class _WideStream(Reference):
    """Under float16 only its products are in float16, as under autocast."""

    def train(self, session: Session) -> Trained:
        return super().train(replace(session, recipe=replace(session.recipe, dtype="fp32")))


def test_a_contract_about_overflows_is_not_offered_if_nothing_overflows() -> None:
    result = judge(LAW.contracts["PREC-05a"], "dense", _WideStream())
    assert (result.outcome, result.lack) == ("not offered", "case"), result.words


def test_a_loss_scale_never_falls_below_one() -> None:
    trainer = Trainer(replace(SMALL, dtype="fp16"))
    assert not any(trainer.follow(float("inf")) for _ in range(20))
    assert trainer.position()["loss_scale"] == 1


def test_a_step_in_float64_stays_in_float64() -> None:
    done = Trainer(replace(SMALL, pattern="AM", depth=2), Execution(precision="float64")).next(wanted=True)
    assert {each.dtype for each in done.gradients.values()} == {torch.float64}
    norm = oracle.norm(done.gradients)
    assert done.grad_norm == pytest.approx(norm, rel=FLOAT64.bound)
    assert done.clip_coef == pytest.approx(oracle.clip(norm, 1.0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to train on")
@pytest.mark.parametrize(
    ("device", "words"), [("cuda", "torch sees 0 for the 1 of this node"), ("tpu", "is none of auto, cpu, cuda")]
)
def test_a_device_that_is_not_there_is_refused_before_the_first_step(
    capsys: pytest.CaptureFixture[str], device: str, words: str
) -> None:
    assert train.main(("--recipe", "tiny-nam56r", "--device", device)) == train.USAGE_ERROR
    assert words in capsys.readouterr().err

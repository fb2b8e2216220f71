"""Training scripts of others, not a line of them changed, on one, two and four ranks: legal layouts are equal and
healthy; released bugs are seen without an adapter."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests_unit._parties.running import invoked

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES, SCRIPTS = ROOT / "docs/examples", ROOT / "contracts/stacks/scripts"
VERSIONS = {"transformers": "5.23.0", "torchtitan": "0.3.0", "megatron": "0.19.2", "megatron-older": "0.16.1",
            "deepspeed": "0.19.8"}  # fmt: skip
OUTSIDE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LIMIT_S, GRACE_S = 600, 30
Observe = Callable[..., Path]


def _run(command: Sequence[str], cwd: Path, env: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
    """To its end. torchrun is asked to end before it is killed: a killed one leaves its ranks, and what they lock."""
    with subprocess.Popen(
        command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        try:
            said, _ = running.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.communicate(timeout=GRACE_S)
            running.kill()
            pytest.fail(f"no end within {limit_s:g} s\n{running.communicate()[0][-3000:]}")
        assert running.returncode == 0, said[-4000:]


def _left_locks(extensions: Path) -> list[Path]:
    """Locks of compilations that no process holds: `torch.utils.file_baton` keeps its own open. Each later compilation
    waits for such a lock for ever."""
    held = set()
    for each in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # ended since, or another user's
            held.add(each.readlink())
    return [lock for lock in sorted(extensions.rglob("lock")) if lock.resolve() not in held]


@pytest.fixture(scope="module")
def observe(tmp_path_factory: pytest.TempPathFactory) -> Observe:
    """Runs a script on a number of ranks in the environment of its stack, once, and gives its trace."""
    folder, done = tmp_path_factory.mktemp("traces"), set[str]()

    def observed(name: str, stack: str, ranks: int, *words: str, options: Sequence[str] = ()) -> Path:
        place = ROOT / f".venv-{stack.removesuffix('-older')}-{VERSIONS[stack]}"
        python, extensions = place / "bin/python", place / "torch_extensions"
        if not python.exists():
            pytest.skip(f"{stack.removesuffix('-older')} {VERSIONS[stack]} is not installed: see `make help`")
        left = _left_locks(extensions)
        assert not left, f"a compilation was stopped, and each later one would wait for its lock: rm {left[0]}"
        if name not in done:
            shutil.rmtree(folder / name, ignore_errors=True)  # of a try that failed, in another test
            env = {key: value for key, value in os.environ.items() if key not in OUTSIDE}
            env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            env["TORCH_EXTENSIONS_DIR"] = str(extensions)
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
            observing = ["-P", "-W", "ignore", "-m", "rankproof", "observe", "--out", folder / name]
            command = [*map(str, (python, *torchrun, python, *observing)), *options, *words]
            _run(command, (EXAMPLES, SCRIPTS)[words[0] == "-m" or (SCRIPTS / words[0]).exists()], env)
            done.add(name)
        return folder / name

    return observed


def test_a_lock_that_no_process_holds_is_found(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    compiling = "import os, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", compiling, str(tmp_path / "one/lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        assert _left_locks(tmp_path) == []
        running.kill()
    assert _left_locks(tmp_path) == [tmp_path / "one/lock"]


def test_a_run_over_its_time_is_ended_with_its_children_and_its_output_is_shown(tmp_path: Path) -> None:
    script = "trap 'kill $!; echo ended >&2; exit 1' TERM; echo $$; sleep 60 & wait"
    with pytest.raises(pytest.fail.Exception, match=r"no end within 1 s\n\d+\n(.*\n)*ended"):
        _run(["bash", "-c", script], tmp_path, os.environ, limit_s=1)


def _diff(*words: object) -> tuple[int, str]:
    ended = invoked("diff", *words)
    return ended.exit_code, ended.output


def _judged(trace: Path, report: Path) -> tuple[int, dict[str, str]]:
    """The exit code, and what each contract said that is violated."""
    ended = invoked("judge", trace, "--report", report)
    results = [json.loads(line).get("result") for line in (report / "run.jsonl").read_text().splitlines()]
    return ended.exit_code, {each["id"]: each["evidence"] if "evidence" in each else str(each)
                             for each in results if each and each["outcome"] == "violated"}  # fmt: skip


def _equal_and_healthy(one: Path, more: Path, weights: int, report: Path) -> None:
    """Two steps over several ranks: all that is compared agrees with one rank, so many updated weights among it."""
    code, said = _diff(one, more)
    assert code == 0, said
    assert f"agrees  step 2: updated weights ({weights})" in said
    assert _judged(more, report) == (0, {})


TRAINER = "train_transformers.py"
TITAN = ("--on-cpu", "torchtitan"), ("-m", "torchtitan.train", "--module", "train_torchtitan", "--config")
MEGATRON = ("--on-cpu", "megatron")


@pytest.mark.transformers
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_trainer_of_transformers_equals_one_rank_and_violates_nothing(
    observe: Observe, tmp_path: Path, ranks: int
) -> None:
    one = observe("tf-one", "transformers", 1, TRAINER, "--steps", "2")
    more = observe(f"tf-{ranks}", "transformers", ranks, TRAINER, "--steps", "2")
    _equal_and_healthy(one, more, 21, tmp_path / "report")


@pytest.mark.transformers
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_loop_over_accelerate_equals_one_rank_and_violates_nothing(
    observe: Observe, tmp_path: Path, ranks: int
) -> None:
    one = observe("accelerate-one", "transformers", 1, "observe_accelerate.py", "--steps", "2")
    more = observe(f"accelerate-{ranks}", "transformers", ranks, "observe_accelerate.py", "--steps", "2")
    _equal_and_healthy(one, more, 7, tmp_path / "report")


@pytest.mark.transformers
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed_zero_equals_one_rank_and_violates_nothing(
    observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, ranks: int
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    one = observe("deepspeed-one", "deepspeed", 1, "observe_deepspeed.py")
    more = observe(f"deepspeed-{stage}-{ranks}", "deepspeed", ranks, "observe_deepspeed.py", "--stage", stage)
    _equal_and_healthy(one, more, 6, tmp_path / "report")


@pytest.mark.titan
@pytest.mark.parametrize(("ranks", "configuration"), [(2, "two_ranks"), (4, "four_ranks")])
def test_torchtitans_train_module_equals_one_rank(
    observe: Observe, tmp_path: Path, ranks: int, configuration: str
) -> None:
    """It draws other weights where they are sharded, so that it begins with those of one rank."""
    options, words = TITAN
    one = observe("titan-one", "torchtitan", 1, *words, "one_rank", options=(*options, "--keep-weights"))
    begins = (*options, "--weights-from", str(one))
    more = observe(configuration, "torchtitan", ranks, *words, configuration, options=begins)
    code, said = _diff(one, more)
    assert code == 0, said
    assert "agrees  step 2: updated weights" in said
    assert _judged(one, tmp_path / "report") == (0, {})
    assert _judged(more, tmp_path / "report-more") == (0, {})


@pytest.mark.megatron
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("words", [("--tp", "2"), ("--distributed-optimizer",)], ids=" ".join)
def test_megatrons_training_loop_equals_one_rank_and_violates_nothing(
    observe: Observe, tmp_path: Path, words: tuple[str, ...], ranks: int
) -> None:
    one = observe("megatron-one", "megatron", 1, "train_megatron.py", options=MEGATRON)
    name = f"megatron{''.join(words)}-{ranks}"
    more = observe(name, "megatron", ranks, "train_megatron.py", *words, options=MEGATRON)
    code, said = _diff(one, more)
    assert code == 0, said
    assert "step 2: updated weights (24)" in said
    assert _judged(more, tmp_path / "report") == (0, {})


@pytest.mark.megatron
def test_megatrons_quick_start_is_violated_because_it_never_trains(observe: Observe, tmp_path: Path) -> None:
    """torch's Adam looks for gradients where Megatron's DDP leaves none: examples/run_simple_mcore_train_loop.py of
    core 0.16 to 0.19."""
    trace = observe("quick", "megatron", 2, "train_megatron.py", "--tp", "2", "--torch-optimizer", options=MEGATRON)
    code, found = _judged(trace, tmp_path / "report")
    assert code == 1
    assert "embedding.word_embeddings.weight is trainable and never moved in 2 steps" in found["OBS-03"]
    assert "gradients are left from the step before" in found["OBS-03"]


@pytest.mark.megatron
def test_replicated_experts_of_megatron_are_found_to_drift_apart(observe: Observe, tmp_path: Path) -> None:
    """github.com/NVIDIA/Megatron-LM/pull/5916: 0.16.1 does not add up the gradients of experts that two ranks hold."""
    words = ("train_megatron.py", "--tp", "2", "--experts", "4")
    older = observe("experts-older", "megatron-older", 2, *words, options=MEGATRON)
    code, found = _judged(older, tmp_path / "older")
    assert code == 1
    name = "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight"
    assert f"the gradient of {name} has other bits" in found["OBS-02"]
    assert set(found) == {"OBS-02"}


@pytest.mark.transformers
def test_transformers_trainer_is_found_to_resume_without_its_experts(observe: Observe, tmp_path: Path) -> None:
    """It saves Qwen3-MoE's experts one by one and loads them fused: a resumed run begins with freshly drawn ones."""
    found = {}
    for model in ("llama", "qwen3_moe"):
        words = (TRAINER, "--model", model, "--out", str(tmp_path / model), "--steps", "3")
        whole = observe(f"{model}-whole", "transformers", 1, *words)
        resumed = observe(f"{model}-resumed", "transformers", 1, *words, "--resume")
        found[model] = _diff(whole, resumed, "--behind", "2")
    assert found["llama"][0] == 0, found["llama"][1]
    assert found["qwen3_moe"][0] == 1
    assert "step 1, initial weights: model.layers.0.mlp.experts.gate_up_proj: differs by" in found["qwen3_moe"][1]

"""`rankproof launch` from the outside: a torchrun on PATH that is a small script, real signals, a real folder."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests_unit._parties.running import RANKPROOF, environment, write

ALL = ("PREF-01", "PREF-02", "PREF-05")
"""What this machine may not be fit for: the tests are about the launch."""
LAUNCH = ("launch", "tiny-nam56r", "--regime", "fsdp2", "--receipts", "receipts")
ACKNOWLEDGED = (*LAUNCH, *(word for each in ALL for word in ("--acknowledge", each)))
HOST = ("--host", "bench-1@us-west1-c")

STEP = '{"step": {"number": %d, "seconds": %s, "tokens": 1000, "loss": %s, "grad_norm": 1.0}}'
TRAINS = "\n".join(
    f"echo '{STEP % (number, seconds, loss)}' >> $RANKPROOF_TELEMETRY"
    for number, seconds, loss in ((0, 60.0, 5.0), (1, 2.0, 4.5), (2, 3.0, 4.25))
)
SCRIPTS = {  # name of a run → its torchrun
    "trains": f"""
env | sort > env.txt; echo "$@" > words.txt
{TRAINS}
echo '{{"memory": {{"rank": 1, "allocated": 5, "reserved": 9}}}}' >> $RANKPROOF_TELEMETRY
echo '{{"backend": {{"part": "attention", "requested": "flash4", "actual": "sdpa"}}}}' >> $RANKPROOF_TELEMETRY
echo '{{"place": {{"local_rank": 2, "device": 2, "bus": "0000:5d:00.0", "nic": "mlx5_1"}}}}' >> $RANKPROOF_TELEMETRY
echo all well""",
    "fails": f"{TRAINS}\nseq 1 100\necho 'RuntimeError: out of patience' >&2\nexit 7",
    "diverges": TRAINS.replace("4.25", "NaN"),
    "dies": "kill -KILL $$",
    "leaves-a-worker": "setsid sh -c 'echo $$ > worker.txt; sleep 60; true' &\nsleep 0.2\necho left",
    "refused": "touch started.txt",
    "dry": "touch started.txt",
    "contradicts": "touch started.txt",
    "receipts-in-a-file": "touch started.txt",
    "stores": "env > env.txt",
    "stores-on-root": "touch started.txt",
    "no-torchrun": None,
}
WORDS: Mapping[str, tuple[str, ...]] = {
    "trains": (*ACKNOWLEDGED, *HOST, "--run", "o'brien's/échec 17", "--", "--log-every", "a b"),
    "refused": (*LAUNCH, *HOST),
    "dry": (*ACKNOWLEDGED, "--dry-run"),
    "contradicts": (*ACKNOWLEDGED, "--", "--tp=4"),
    "receipts-in-a-file": (*ACKNOWLEDGED, "--receipts", "torchrun.sh/receipts"),
    "stores": (*ACKNOWLEDGED, "--storage", "map.toml", "--acknowledge", "STOR-01", "--acknowledge", "STOR-02",
               "--acknowledge", "STOR-03"),
    "stores-on-root": (*ACKNOWLEDGED, "--storage", "map.toml"),
}  # fmt: skip
MAP = """
durable = "/volumes/none/checkpoints"
scratch = "/volumes/none/scratch"
receipts = "/volumes/none/receipts"
data = "/volumes/none/data"
data_volume = "/volumes/none"
"""


@dataclass(frozen=True)
class Launched:
    """A launch that ended: its folder, what it printed, its exit code."""

    folder: Path
    out: str
    err: str
    code: int

    @property
    def left(self) -> list[Path]:
        return sorted((self.folder / "receipts").glob("*"))

    @property
    def receipt(self) -> dict[str, Any]:
        (folder,) = self.left
        body: dict[str, Any] = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
        return body


def start(folder: Path, words: tuple[str, ...], script: str | None, **variables: str) -> subprocess.Popen[str]:
    """`rankproof` in a folder of its own, with a torchrun of its own before others on PATH."""
    tools = {"bin/nvidia-smi": "#!/bin/sh\necho no driver\nexit 9\n", "torchrun.sh": f"#!/bin/sh\n{script}\n"}
    write(folder, tools | {"map.toml": MAP}, mode=0o755)
    (folder / "tmp").mkdir()
    if script is not None:
        (folder / "bin/torchrun").symlink_to(folder / "torchrun.sh")
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    return subprocess.Popen(
        [sys.executable, str(RANKPROOF), *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(PATH=path, TMPDIR=str(folder / "tmp"), CUDA_DEVICE_MAX_CONNECTIONS="1",
                        CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7", **variables),
    )  # fmt: skip


def ended(folder: Path, process: subprocess.Popen[str]) -> Launched:
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Launched(folder, out, err, process.returncode)


def alive(file: Path) -> bool:
    """Whether the process whose number stands in a file still runs."""
    stat = Path("/proc", file.read_text(encoding="utf-8").strip(), "stat")
    return stat.exists() and stat.read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Launched]:
    root = tmp_path_factory.mktemp("launches")

    def one(name: str) -> Launched:
        return ended(root / name, start(root / name, WORDS.get(name, (*ACKNOWLEDGED, *HOST)), SCRIPTS[name]))

    with ThreadPoolExecutor(max_workers=3) as pool:
        return dict(zip(SCRIPTS, pool.map(one, SCRIPTS), strict=True))


def test_a_run_that_trains_leaves_a_receipt_with_its_throughput(runs: Mapping[str, Launched]) -> None:
    run = runs["trains"]
    receipt = run.receipt
    assert (run.code, receipt["ending"], receipt["exit_code"]) == (0, "ok", 0), run.err
    assert (receipt["window"]["first"], receipt["tokens_per_second"]) == (1, 400.0)
    assert receipt["peak"] == {"allocated": 5, "reserved": 9}
    assert receipt["backends"][0]["reason"] == "the run did not say"
    assert receipt["places"][2] == {"local_rank": 2, "device": 2, "bus": "0000:5d:00.0", "nic": "mlx5_1"}
    assert receipt["provenance"]["machine"]["host"] == "bench-1@us-west1-c"
    assert receipt["provenance"]["loaded"] == []
    assert set(receipt["preflight"]["acknowledged"]) <= set(ALL)
    assert receipt["preflight"]["ran"]
    assert "all well" in run.out
    assert (run.left[0] / "log.txt").read_text(encoding="utf-8") == "all well\n"
    assert sorted(each.name for each in run.left[0].iterdir()) == ["log.txt", "receipt.json"]


def test_the_ranks_get_the_lanes_environment_and_every_gpu(runs: Mapping[str, Launched]) -> None:
    folder = runs["trains"].folder
    env = dict(line.partition("=")[::2] for line in (folder / "env.txt").read_text(encoding="utf-8").splitlines())
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in env
    assert env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    words = (folder / "words.txt").read_text(encoding="utf-8").strip()
    assert words.startswith("--standalone --nproc_per_node=8 -m contracts.stacks.reference.train")
    assert words.endswith("--log-every a b")
    assert runs["trains"].receipt["command"][-2:] == ["--log-every", "a b"]


def test_a_failing_run_keeps_its_exit_code_and_last_output(runs: Mapping[str, Launched]) -> None:
    receipt = runs["fails"].receipt
    assert (runs["fails"].code, receipt["ending"], receipt["exit_code"]) == (7, "failed", 7)
    assert receipt["failure"].endswith("99\n100\nRuntimeError: out of patience")
    assert receipt["witness"]["steps"] == 3


def test_a_diverged_runs_receipt_has_nan_and_no_throughput(runs: Mapping[str, Launched]) -> None:
    receipt = runs["diverges"].receipt
    assert (receipt["witness"]["last_loss"], receipt["tokens_per_second"]) == ("NaN", None)
    assert "not finite" in receipt["withheld"]


def test_a_receipt_shows_whether_the_launcher_was_killed_or_stopped(runs: Mapping[str, Launched]) -> None:
    receipt = runs["dies"].receipt
    assert (runs["dies"].code, receipt["ending"], receipt["exit_code"]) == (128 + 9, "failed", -9)


def test_a_worker_that_outlives_torchrun_does_not_delay_the_receipt(runs: Mapping[str, Launched]) -> None:
    run = runs["leaves-a-worker"]
    assert (run.code, run.receipt["ending"]) == (0, "ok")
    assert not alive(run.folder / "worker.txt"), "the worker keeps its GPU and its port"


def test_preflight_refuses_before_anything_starts_and_leaves_a_receipt_that_says_so(
    runs: Mapping[str, Launched],
) -> None:
    """This nvidia-smi finds no driver, and a tool that fails is never a pass."""
    run = runs["refused"]
    assert (run.code, run.receipt["ending"], run.receipt["exit_code"]) == (2, "refused", None)
    assert "PREF-05" in run.err
    assert {each["promise"] for each in run.receipt["preflight"]["findings"]} >= {"PREF-05"}
    assert not (run.folder / "started.txt").exists()


def test_a_dry_run_starts_and_writes_nothing(runs: Mapping[str, Launched]) -> None:
    run = runs["dry"]
    assert run.code == 0, run.err
    assert "torchrun --standalone --nproc_per_node=8" in run.out
    assert (run.left, (run.folder / "started.txt").exists()) == ([], False)


@pytest.mark.parametrize(
    ("name", "words"),
    [("contradicts", "words = '--tp=4': is set by the lane already"), ("receipts-in-a-file", "--receipts = ")],
)
def test_an_option_that_contradicts_the_lane_is_refused_before_the_start(
    name: str, words: str, runs: Mapping[str, Launched]
) -> None:
    assert runs[name].code == 2
    assert words in runs[name].err
    assert not (runs[name].folder / "started.txt").exists()


def test_a_missing_torchrun_leaves_a_receipt(runs: Mapping[str, Launched]) -> None:
    run = runs["no-torchrun"]
    assert (run.code, run.receipt["ending"]) == (127, "failed")
    assert "torchrun cannot be started: No such file or directory" in run.receipt["failure"]


def test_the_storage_map_is_checked_and_its_caches_reach_the_ranks(runs: Mapping[str, Launched]) -> None:
    refused, stored = runs["stores-on-root"], runs["stores"]
    assert refused.code == 2, refused.err
    assert "STOR-01" in refused.err
    assert not (refused.folder / "started.txt").exists()
    assert stored.code == 0, stored.err
    assert "TRITON_CACHE_DIR=/volumes/none/scratch/" in (stored.folder / "env.txt").read_text(encoding="utf-8")
    assert "TRITON_CACHE_DIR" in stored.receipt["environment"]["overlay"]


# Signals.

WAITS = {
    "stops": "trap 'echo stopping; exit 0' TERM INT\ntouch started.txt\nwhile :; do sleep 0.05; done",
    "does-not-stop": "setsid sh -c 'echo $$ > worker.txt; sleep 60; true' &\nsleep 0.2\n"
    "trap '' TERM INT\ntouch started.txt\nwhile :; do sleep 0.05; done",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Launched]:
    root = tmp_path_factory.mktemp("signals")
    # Whoever is started in the background of a shell ignores SIGINT, and so would the launches: that is another test.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def one(job: tuple[str, str, signal.Signals]) -> Launched:
        name, script, number = job
        process = start(root / name, (*ACKNOWLEDGED, "--grace", "0.3"), WAITS[script])
        patience = time.monotonic() + 120
        while not (root / name / "started.txt").exists():
            assert time.monotonic() < patience, process.poll()
            time.sleep(0.02)
        process.send_signal(number)
        return ended(root / name, process)

    jobs = {
        "term": ("term", "stops", signal.SIGTERM),
        "interrupt": ("interrupt", "stops", signal.SIGINT),
        "hangup-ignored": ("hangup-ignored", "does-not-stop", signal.SIGTERM),
        "killed": ("killed", "does-not-stop", signal.SIGKILL),
    }
    try:
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = dict(zip(jobs, pool.map(one, jobs.values()), strict=True))
    finally:
        signal.signal(signal.SIGINT, before)
    return found


@pytest.mark.parametrize("name", ["term", "interrupt"])
def test_a_signal_reaches_torchrun_and_the_receipt_is_written_after_it(
    name: str, stopped: Mapping[str, Launched]
) -> None:
    receipt = stopped[name].receipt
    assert (receipt["ending"], receipt["exit_code"]) == ("terminated", 0)
    assert stopped[name].code == 128 + {"term": 15, "interrupt": 2}[name], "a stopped run is no success"
    assert receipt["failure"] == "stopping"


def test_a_run_that_does_not_stop_is_killed_after_its_grace_with_everything_it_started(
    stopped: Mapping[str, Launched],
) -> None:
    run = stopped["hangup-ignored"]
    assert (run.code, run.receipt["ending"], run.receipt["exit_code"]) == (128 + 9, "terminated", -9)
    assert not alive(run.folder / "worker.txt"), "a worker in a session of its own survived its launcher"


def test_a_launcher_that_is_killed_takes_the_run_with_it(stopped: Mapping[str, Launched]) -> None:
    run = stopped["killed"]
    assert run.code == -9
    patience = time.monotonic() + 60
    while alive(run.folder / "worker.txt") and time.monotonic() < patience:
        time.sleep(0.1)
    assert not alive(run.folder / "worker.txt"), "a worker in a session of its own survived its launcher"


def test_a_launch_under_nohup_survives_the_hangup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(tmp_path / "run", ACKNOWLEDGED, "touch started.txt\nsleep 0.4\necho through")
    finally:
        signal.signal(signal.SIGHUP, before)
    while not (tmp_path / "run/started.txt").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert ended(tmp_path / "run", process).receipt["ending"] == "ok"


# Secrets.

SECRETS = {
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLzXcVb",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzEXAMPLE9",
    "TORCH_HUB_PASSWORD": "marmalade-orchard-77",
}
URL_PASSWORD, FLAG_TOKEN, BEARER, KEY = "tr0ub4dor-and-3", "plum-lantern-4401", "abcDEF123456", "b3BlbnNzaC1rZXktdjEA"
LEAKS = f"""
echo "$HF_TOKEN" ; echo "args: $@" ; echo "key=$AWS_SECRET_ACCESS_KEY"; echo "$TORCH_HOME"; env
echo 'Authorization: Bearer {BEARER}'
printf -- '-----BEGIN RSA PRIVATE KEY-----\\n{KEY}\\n-----END RSA PRIVATE KEY-----\\nafter the key\\n'
printf '%s' "$TORCH_HUB_PASSWORD" >&2
backend='{{"backend": {{"part": "hub", "requested": "a", "actual": "b", "reason": "'$TORCH_HUB_PASSWORD'"}}}}'
echo "$backend" >> $RANKPROOF_TELEMETRY
exit 3"""


def test_no_planted_secret_is_anywhere_in_what_a_launch_leaves_or_prints(tmp_path: Path) -> None:
    run = ended(
        tmp_path / "leaks",
        start(
            tmp_path / "leaks", (*ACKNOWLEDGED, "--", "--hub-token", FLAG_TOKEN), LEAKS, **SECRETS,
            TORCH_HOME=f"https://trainer:{URL_PASSWORD}@cache.example/hub", NCCL_DEBUG="WARN",
        ),
    )  # fmt: skip
    assert (run.code, run.receipt["ending"]) == (3, "failed"), run.err
    kept = {path: path.read_bytes() for path in (tmp_path / "leaks/receipts").rglob("*") if path.is_file()}
    assert sorted(path.name for path in kept) == ["log.txt", "receipt.json"]
    for secret in (*SECRETS.values(), URL_PASSWORD, FLAG_TOKEN, BEARER, KEY):
        places = [path.name for path, body in kept.items() if secret.encode() in body]
        assert not places, f"{secret} stands in {places}"
        assert secret not in run.out + run.err
    (log,) = (body.decode() for path, body in kept.items() if path.name == "log.txt")
    assert "after the key" in log
    assert "NCCL_DEBUG=WARN" in log
    assert run.receipt["environment"]["reached"]["NCCL_DEBUG"] == "WARN"
    assert not list((tmp_path / "leaks/tmp").iterdir()), "what a run told is left behind"

"""Diagnosis of facts that cannot be, and as a command over the folder of a run; MANI judges the others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from contracts.law._support.recorded_runs import FACTS
from contracts.spec import Refused
from contracts.spec.manifest import Manifest, RunError, dumps
from contracts.spec.receipt import Receipt
from contracts.spec.triage import RunFacts, Symptom, triage
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import invoked, write

LAUNCHED = Manifest(
    run="nam56r-17", app_id="ap-5Qx", function_call_id="fc-01J", launched_at="2026-04-05T09:00:00Z", state="detached"
)
RUNNING = replace(LAUNCHED, state="running", last_polled_at="2026-04-05T09:03:00Z")
OK = replace(RUNNING, state="ok", completed_at="2026-04-05T11:00:00Z", artifacts=("receipt.json", "trace/rank-10.json"))
ERROR = replace(
    RUNNING,
    state="error",
    completed_at="2026-04-05T11:00:00Z",
    error=RunError(type="OutOfMemoryError", message="rank 3"),
)


@pytest.mark.parametrize(("logs", "said"), [(True, "logs exist"), (False, "no logs either")])
def test_an_end_without_a_receipt_says_whether_logs_are_there(logs: bool, said: str) -> None:
    ended = RunFacts(
        state="ok", silent_s=0.0, patience_s=600.0, startup_s=9.0, startup_budget_s=3600.0, steps=4,
        receipt=False, logs=logs,
    )  # fmt: skip
    assert triage(ended).why == f"ok without a receipt; {said}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"silent_s": -1.0}, "silent_s"),
        ({"steps": -1}, "steps"),
        ({"waiting_ranks": (8,), "local_tokens": (1,) * 8}, "waiting_ranks"),
        ({"waiting_ranks": (-1,)}, "waiting_ranks"),
        ({"error": RunError(type="T", message="m")}, "error"),
    ],
)
def test_contradicting_facts_about_a_stuck_run_are_refused(change: dict[str, object], field: str) -> None:
    sound = RunFacts(
        state="running", silent_s=0.0, patience_s=600.0, startup_s=None, startup_budget_s=3600.0, steps=None,
        receipt=False, logs=False,
    )  # fmt: skip
    with pytest.raises(Refused) as caught:
        triage(replace(sound, **change))  # type: ignore[arg-type]
    assert caught.value.fields == (field,)


def run_folder(tmp_path: Path, manifest: Manifest | None, *files: str) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    if manifest is not None:
        (folder / "manifest.json").write_text(dumps(manifest))
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("what was left\n")
    return folder


def asked(folder: Path, *options: str, code: int | None = None) -> Result:
    return invoked("triage", folder, *options, code=code)


@pytest.mark.parametrize(
    ("manifest", "files", "options", "layer"),
    [
        (None, ["stdout.log"], [], "launch"),
        (LAUNCHED, [], [], "launch"),
        (RUNNING, ["logs/rank-0"], [], "collector"),
        (RUNNING, [], ["--patience", "1e12"], None),
        (RUNNING, [], ["--patience", "1e12", "--steps", "0"], "bootstrap"),
        (RUNNING, [], ["--steps", "0", "--waiting", "0,1,2"], "distributed compile"),
        (RUNNING, [], ["--steps", "0", "--waiting", "0,1", "--tokens", "512,512,0"], "sharding"),
        (OK, ["stdout.log"], [], "observability"),
        (ERROR, [], [], "execution"),
    ],
)
def test_the_triage_command_names_the_layer(
    tmp_path: Path, manifest: Manifest | None, files: list[str], options: list[str], layer: str | None
) -> None:
    folder = run_folder(tmp_path, manifest, *files)
    done = asked(folder, *options, "--json")
    assert json.loads(done.output)["diagnosis"]["layer"] == layer, done.output
    assert done.exit_code == (0 if layer is None else 1)
    told = asked(folder, *options, code=done.exit_code)
    assert layer is None or "  look first at " in told.output


def test_a_truncated_receipt_counts_as_missing_and_the_command_says_why(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, OK, "trace/rank-10.json")
    (folder / "receipt.json").write_text('{"schema": "rankproof.receipt/1", "run": "nam5')
    done = asked(folder, code=1)
    assert "ok without a receipt" in done.output
    assert "is no receipt: receipt" in done.output


def test_an_empty_artifact_is_absent(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, OK)
    write(folder, {"trace/rank-10.json": ""})
    assert json.loads(asked(folder, "--json").output)["facts"]["present"] == []


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ('{"run": "nam56r-17", "state": "ok"', [], "is not JSON"),
        (dumps(OK).replace('"completed_at":"2026-04-05T11:00:00Z"', '"completed_at":null'), [], "completed_at"),
        (dumps(RUNNING), ["--waiting", "0;1"], "--waiting"),
        (dumps(RUNNING), ["--steps", "-3"], "steps"),
        (dumps(RUNNING), ["--stack", "no.such:Thing"], "no.such"),
    ],
)
def test_an_unreadable_manifest_ends_in_one_clear_error(
    tmp_path: Path, text: str, options: list[str], said: str
) -> None:
    folder = run_folder(tmp_path, None)
    (folder / "manifest.json").write_text(text)
    done = asked(folder, *options)
    assert done.exit_code in (2, 3)
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.output


def run_with_receipt(tmp_path: Path, name: str, receipt: Receipt) -> Path:
    (tmp_path / name).mkdir()
    folder = run_folder(tmp_path / name, OK, "trace/rank-10.json")
    (folder / "receipt.json").write_text(Reference().write_receipt(receipt))
    return folder


@pytest.mark.parametrize(
    ("part", "symptom"), [("nothing", None), ("mode", "numbers are suspect"), ("image", "re-run differs")]
)
def test_two_runs_are_compared_by_their_receipts(tmp_path: Path, part: str, symptom: Symptom | None) -> None:
    receipt = Reference().receipt(FACTS)
    changed = {
        "nothing": receipt,
        "mode": replace(receipt, lane=replace(receipt.lane, mode="author_dp")),
        "image": replace(receipt, provenance=replace(receipt.provenance, image="sha256:another")),
    }[part]
    prior, run = (run_with_receipt(tmp_path, name, r) for name, r in (("prior", receipt), ("run", changed)))
    found = json.loads(asked(run, "--against", str(prior), "--json").output)["diagnosis"]
    assert found["symptom"] == symptom
    assert symptom is None or part.replace("mode", "lane") in found["why"]


def test_a_run_is_not_compared_with_one_without_a_receipt(tmp_path: Path) -> None:
    run = run_with_receipt(tmp_path, "run", Reference().receipt(FACTS))
    (tmp_path / "prior").mkdir()
    assert "holds no receipt" in asked(run, "--against", str(run_folder(tmp_path / "prior", OK)), code=2).stderr

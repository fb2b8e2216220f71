"""Files and variables with the project's former name: records are read, environment variables are refused at once."""

import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from contracts.court import record
from contracts.law._support.recorded_runs import RECEIPT
from contracts.spec import Refused, codec, manifest
from contracts.spec.former_name import FORMER, current
from contracts.spec.manifest import Manifest
from contracts.spec.receipt import SCHEMA
from contracts.stacks.reference.receipts import receipt as receipts
from contracts.stacks.reference.train import read
from tests_unit._parties.running import ROOT, rankproof
from tests_unit.gate._recorded_run import TODAY, A, recorded


def as_before(schema: str) -> str:
    return schema.replace("rankproof", FORMER)


def test_a_record_with_the_suites_former_name_is_read() -> None:
    run = recorded((A, "holds"))
    before = replace(run, header=replace(run.header, schema=as_before(run.header.schema)))
    text = record.write(before, date.fromisoformat(TODAY))
    assert FORMER in text
    assert record.read(text)[0] == run


def test_a_receipt_with_the_suites_former_name_is_read() -> None:
    text = codec.dumps(RECEIPT)
    assert receipts.read(text.replace(SCHEMA, as_before(SCHEMA))) == receipts.read(text)


def test_a_manifest_with_the_suites_former_name_is_read() -> None:
    launched = Manifest(
        run="r", app_id="a", function_call_id="f", launched_at="2026-06-15T00:00:00+00:00", state="detached"
    )
    written = manifest.dumps(launched)
    assert manifest.loads(written.replace(manifest.SCHEMA, as_before(manifest.SCHEMA))) == launched


@pytest.mark.parametrize("schema", [None, 1, "other.run/1", "rankproof.run/2", "my-rankproof.run/1"])
def test_a_file_of_another_schema_is_not_renamed(schema: object) -> None:
    assert current(schema) == schema


def test_variables_with_the_former_name_are_refused_with_the_new_one(tmp_path: Path) -> None:
    old = {f"{FORMER.upper()}_TELEMETRY": "told.jsonl", f"{FORMER.upper()}_HOST": "box@here"}
    done = rankproof("list", cwd=tmp_path, **old)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "told.jsonl" in lines[1]
    assert "set RANKPROOF_TELEMETRY" in lines[1]


def test_a_trainer_refuses_a_variable_with_the_former_name() -> None:
    with pytest.raises(Refused, match="set RANKPROOF_TELEMETRY"):
        read((), {f"{FORMER.upper()}_TELEMETRY": "told.jsonl"})


def test_only_one_file_contains_the_former_name() -> None:
    words = ["git", "grep", "-Iil", FORMER]
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: there is no list of files")
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["contracts/spec/former_name.py"]

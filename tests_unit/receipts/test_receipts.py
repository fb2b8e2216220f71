"""Receipts where no question reaches: the published schema, a full disk, provenance, telemetry."""

import base64
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from contracts.harness import telemetry
from contracts.instruments import packages, provenance
from contracts.instruments.import_probe import modules_after
from contracts.law._support.recorded_runs import FACTS, RECEIPT, STEPS
from contracts.spec import Refused
from contracts.stacks.reference.receipts.receipt import schema_text
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import metadata, write

ROOT = Path(__file__).parents[2]
STACK = Reference()
TEXT = STACK.write_receipt(RECEIPT)


def test_the_published_schema_is_current_and_receipts_fit_it() -> None:
    text = (ROOT / "docs/schema/receipt-1.json").read_text(encoding="utf-8")
    assert text == schema_text(), (
        "write it: python -m contracts.stacks.reference.receipts.receipt docs/schema/receipt-1.json"
    )
    schema = Draft202012Validator(json.loads(text))
    nan = replace(FACTS, steps=(*STEPS[:3], replace(STEPS[3], loss="NaN")), ending="failed")
    for receipt in (RECEIPT, STACK.receipt(FACTS), STACK.receipt(nan)):
        schema.validate(json.loads(STACK.write_receipt(receipt)))
    with pytest.raises(ValidationError, match="speed"):
        schema.validate({**json.loads(TEXT), "speed": 1})


def test_the_receipt_of_a_card_is_read_and_says_what_ran_where() -> None:
    text = (ROOT / "docs/examples/receipt_h200.json").read_text(encoding="utf-8")
    Draft202012Validator(json.loads(schema_text())).validate(json.loads(text))
    read = STACK.read_receipt(text)
    assert read.provenance.machine.device == "NVIDIA H200"
    assert {each.part: each.actual for each in read.backends}["experts"] == "torch-grouped"
    assert [each.device for each in read.places] == [0]
    assert read.peak is not None
    assert read.peak.allocated <= read.peak.reserved


# Damage: whatever comes in, a reader answers or refuses.


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in inside for deeper in _paths(item, (*path, key)))]


# Crashes: the old record or the new one.


def _names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_full_disk_leaves_the_old_record_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    STACK.publish_receipt(RECEIPT, str(path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(Refused, match=r"cannot be written: File too large"):
            STACK.publish_receipt(replace(RECEIPT, run="later"), str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text(encoding="utf-8") == TEXT
    assert _names(tmp_path) == ["receipt.json"]


@pytest.mark.parametrize("where", ["no-such-folder/receipt.json", "a-folder", "a-file/receipt.json"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-file").touch()
    with pytest.raises(Refused, match="cannot be written"):
        STACK.publish_receipt(RECEIPT, str(tmp_path / where))
    assert _names(tmp_path) == ["a-file", "a-folder"]


def test_a_receipts_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        STACK.publish_receipt(RECEIPT, str(tmp_path / "receipt.json"))
    finally:
        os.umask(before)
    assert (tmp_path / "receipt.json").stat().st_mode & 0o777 == 0o644


# Provenance: taken from a real work tree, without a framework.


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "-q")
    for name in ("model.py", "old name.py", "gone.py"):
        (tmp_path / name).write_text(f"{name}\n" * 5, encoding="utf-8")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_clean_work_tree_is_recorded_as_clean_and_every_kind_of_change_as_dirty(tree: Path) -> None:
    clean = provenance.source(tree)
    assert (clean.revision, clean.dirty, clean.changed) == (_git(tree, "rev-parse", "HEAD"), False, ())
    write(tree, {"model.py": "changed\n", "staged.py": ""})
    _git(tree, "add", "staged.py")
    (tree / "staged.py").unlink()  # staged and gone: a collector that opened it would die here
    _git(tree, "mv", "old name.py", "new\nname.py")
    (tree / "gone.py").unlink()
    (tree / "untracked.py").touch()
    dirty = provenance.source(tree)
    assert dirty.dirty
    assert set(dirty.changed) == {"model.py", "staged.py", "new\nname.py", "gone.py", "untracked.py"}
    assert not (tree / ".git/index.lock").exists()


def test_a_folder_without_git_is_recorded_as_unknown_and_not_as_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = provenance.source(tmp_path)
    assert (found.revision, found.dirty) == (None, None)


def test_collecting_provenance_imports_no_framework() -> None:
    loaded = modules_after(
        "from pathlib import Path\nfrom contracts.instruments import provenance\n"
        "assert provenance.take(folder=Path('.'), host=None, devices=8).loaded == ()"
    )
    assert not {name.split(".")[0] for name in loaded} & set(provenance.HEAVY)


def test_a_receipts_runtime_is_that_of_torchruns_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun of another environment starts other ranks than the one this suite is installed in."""
    site = tmp_path / "site"
    write(site, {"torch/a.so": "abc"})
    info = metadata(site, "torch", "9.9", RECORD="torch/a.so,sha256=aa,3\n../../bin/torchrun,sha256=bb,2\n")
    other = f'#!/bin/sh\nshift\nexec {shutil.which("env")} PYTHONPATH={site} {sys.executable} "$@"\n'
    write(tmp_path, {"python3": other, "torchrun": f"#!{tmp_path / 'python3'}\n"}, mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    _, components = provenance.runtime()
    (torch,) = (each for each in components if each.name == "torch")
    assert torch.version == "9.9"
    assert torch.build is not None
    (info / "RECORD").write_text("torch/a.so,sha256=aa,3\n../../bin/torchrun,sha256=cc,2\n", encoding="utf-8")
    assert provenance.runtime()[1] == components, "an entry point is no part of the build"
    (info / "RECORD").write_text("torch/a.so,sha256=ab,3\n", encoding="utf-8")
    assert provenance.runtime()[1] != components, "another file under the same version is another build"


def test_the_packages_of_this_environment_have_a_build_or_say_that_none_is_known() -> None:
    for each in packages.installed():
        assert each["build"] is None or str(each["build"]).startswith(("git:", "sha256:"))


@pytest.mark.parametrize("edited", ["none", "a source", "a binary", "a file that is gone"])
def test_a_package_whose_files_were_edited_has_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    content = {"kernels/scan.py": b"FUSED = True\n", "kernels/_c.so": b"\x7fELF" * 9}
    (tmp_path / "kernels").mkdir()
    lines = []
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    metadata(tmp_path, "kernels", "1.0", RECORD="\n".join([*lines, "kernels-1.0.dist-info/RECORD,,"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    if edited == "a source":
        (tmp_path / "kernels/scan.py").write_bytes(b"FUSED = Fals\n")  # as long as it was
    elif edited == "a binary":
        (tmp_path / "kernels/_c.so").write_bytes(b"\x7fELF" * 8)
    elif edited != "none":
        (tmp_path / "kernels/scan.py").unlink()
    assert (packages.build_of("kernels") is None) == (edited != "none")


# Telemetry: a line that cannot be read costs a line.


def test_telemetry_is_read_line_by_line_and_lost_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(
        b'{"step": {"number": 1, "seconds": 2.0, "tokens": 8, "loss": NaN, "grad_norm": -Infinity}}\n'
        b'{"step": {"number": 0, "seconds": 9, "tokens": 8, "loss": 4.0, "grad_norm": null}}\n'
        b'{"memory": {"rank": 3, "allocated": 5, "reserved": 7}}\n'
        b'{"step": {"number": 2, "seconds": "fast", "tokens": 8, "loss": 1, "grad_norm": 1}}\n'
        b'{"step": 1}\n[]\n\xff\xfe\n{"colour": {}}\n{"step": {"number": 2, "sec'
    )
    told = telemetry.read(path)
    assert [(step.number, step.loss, step.grad_norm) for step in told.steps] == [
        (0, 4.0, None),
        (1, "NaN", "-Infinity"),
    ]
    assert (told.memory[0].reserved, told.lost) == (7, 6)
    assert telemetry.read(tmp_path / "none.jsonl") == telemetry.Telemetry()

"""`rankproof compare` as a user meets it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.law._support.recorded_runs import RECEIPT, on_host
from contracts.spec.receipt import Receipt
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import invoked

STACK = Reference()
FASTER = replace(RECEIPT, tokens_per_second=81_920.0)
RECEIPTS: Mapping[str, Receipt] = {
    "base": RECEIPT,
    "faster": FASTER,
    "elsewhere": replace(on_host(FASTER, None), lane=replace(FASTER.lane, regime="megatron")),
    "other-image": replace(FASTER, provenance=replace(FASTER.provenance, image="sha256:88bb")),
    "withheld": replace(RECEIPT, tokens_per_second=None, withheld="a gradient norm was not finite, or not measured"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, receipt in RECEIPTS.items():
        (tmp_path / name).mkdir()
        STACK.publish_receipt(receipt, str(tmp_path / name / "receipt.json"))
    (tmp_path / "torn.json").write_text(STACK.write_receipt(RECEIPT)[:700], encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    return tmp_path


def told(folder: Path, *words: str, code: int) -> str:
    """Everything printed."""
    return invoked("compare", *(folder / word if "--" not in word else word for word in words), code=code).output


def test_two_comparable_runs_are_shown_with_their_figures_windows_and_ratio(folder: Path) -> None:
    assert told(folder, "base", "faster/receipt.json", code=0).splitlines() == [
        "same class: nam56r on bench-1@us-west1-c",
        "  base      65,536.0 tokens/s over steps 1 to 2 (1 dropped), peak 91.0 GiB allocated, 97.0 GiB reserved",
        "  candidate 81,920.0 tokens/s over steps 1 to 2 (1 dropped), peak 91.0 GiB allocated, 97.0 GiB reserved",
        "  ratio     1.2500 (candidate / base, tokens/s)",
    ]


def test_a_withheld_throughput_is_shown_with_its_reason_and_without_a_ratio(folder: Path) -> None:
    text = told(folder, "base", "withheld", code=0)
    assert "  candidate no figure: a gradient norm was not finite, or not measured" in text
    assert "ratio" not in text


def test_runs_that_are_not_comparable_are_shown_with_every_difference_and_no_figure(folder: Path) -> None:
    assert told(folder, "base", "elsewhere", code=3).splitlines() == [
        "not comparable:",
        "  host lineage: bench-1@us-west1-c ≠ not said",
        "  launch regime: fsdp2, nemo_native, compile regional ≠ megatron, nemo_native, compile regional",
    ]


def test_a_changed_runtime_is_named_and_no_regression_is_reported(folder: Path) -> None:
    text = told(folder, "base", "other-image", code=3)
    assert text == ("changed class:\n  runtime provenance: image sha256:77aa ≠ image sha256:88bb\n")


def test_json_holds_the_comparison(folder: Path) -> None:
    assert json.loads(told(folder, "base", "faster", "--json", code=0))["ratio"] == 1.25


@pytest.mark.parametrize(
    ("name", "words"),
    [("torn.json", "is not JSON"), ("missing", "cannot be read"), ("binary.json", "is not text")],
)
def test_comparing_a_file_that_is_no_receipt_ends_in_one_clear_error(name: str, words: str, folder: Path) -> None:
    text = told(folder, "base", name, code=2)
    assert words in text
    assert "Traceback" not in text

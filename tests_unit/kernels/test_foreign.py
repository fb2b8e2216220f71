"""Packages of others: what becomes of importing them, and mamba-ssm's kernel in place of the reference's own scan."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
from contracts.instruments import import_probe, mamba_ssm
from contracts.instruments.import_probe import modules_after
from contracts.spec import FLOAT32
from tests_unit._parties.running import metadata, ran, write

HERE = Path(__file__).parent

PACKAGES = {  # what stands in the package's __init__, whether it has metadata → state, version, a part of the words
    "good": ("x = 1", True, "importable", "1.2", ""),
    "without-metadata": ("x = 1", False, "importable", None, ""),
    "empty-metapackage": ("raise RuntimeError('Found empty meta package')", True, "broken", "1.2",
                          "RuntimeError: Found empty meta package"),
    "needs-another": ("import no_such_extension", True, "broken", "1.2", "No module named 'no_such_extension'"),
    "undefined-symbol": ("raise ImportError('undefined symbol: _ZN3c10')", False, "broken", None, "undefined symbol"),
    "leaves": ("import sys; sys.exit(3)", True, "broken", "1.2", "SystemExit: 3"),
    "dies": ("import os; os._exit(5)", True, "broken", None, "its import ended the process: exit code 5"),
    "talks": ("print('welcome')", True, "importable", "1.2", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", PACKAGES)
def test_a_package_is_broken_or_importable(case: str, tmp_path: Path) -> None:
    source, listed, state, version, words = PACKAGES[case]
    write(tmp_path, {"sample_kernels/__init__.py": source})
    if listed:
        metadata(tmp_path, "sample_kernels", "1.2")
    found = import_probe.probe("sample-kernels", ("sample_kernels",), path=str(tmp_path))
    assert (found.state, found.version) == (state, version)
    assert words in found.words


def test_a_missing_package_is_absent_and_metadata_without_a_module_is_broken(tmp_path: Path) -> None:
    assert import_probe.probe("sample-kernels", ("sample_kernels",), path=str(tmp_path / "nothing")).state == "absent"
    metadata(tmp_path, "sample_kernels", "1.2")
    found = import_probe.probe("sample-kernels", ("sample_kernels",), path=str(tmp_path))
    assert (found.state, found.version) == ("broken", "1.2")


def test_adapters_import_no_package_when_they_are_imported() -> None:
    modules = modules_after("import contracts.stacks.reference.kernels.substitution")
    assert "contracts.stacks.reference.kernels.transformer_engine" in modules
    assert not {module.split(".")[0] for module in modules} & {"mamba_ssm", "transformer_engine", "triton"}


@pytest.mark.kernels
@pytest.mark.skipif(mamba_ssm.python() is None, reason=f"mamba-ssm is not installed: {mamba_ssm.REMEDY}")
@pytest.mark.parametrize("lying", ["whole", "packed"])
def test_mamba_ssms_scan_replaces_the_references_scan(lying: str) -> None:
    """Output, last state and every gradient, from an initial state; packed documents begin at number 3."""
    command = [str(mamba_ssm.python()), "-O", "-P", "-s", "-W", "ignore", str(HERE / "_adapter.py"), lying]
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    answer = json.loads(ran(command, env=env, limit_s=300, code=0).stdout)
    assert (answer["ran"], answer["own"]) == ({"scan": "mamba-ssm"}, {"scan": "native"})
    assert len(answer["far"]) == 21
    assert {name: far for name, far in answer["far"].items() if far > FLOAT32.bound} == {}

"""`.ci/environment` reads one table of environments: which calls of pip, under which pins."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit
SCRIPT = Path(__file__).parents[1] / ".ci/environment"
TABLE: dict[str, Any] = tomllib.loads(SCRIPT.with_name("environments.toml").read_text(encoding="utf-8"))


def _script() -> Any:
    loader = SourceFileLoader("environment", str(SCRIPT))
    spec = spec_from_loader("environment", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "python", "words"),
    [
        ("0.16.1", (3, 12), {"megatron-core=={version}"}),
        ("0.17.0", (3, 11), {"--ignore-requires-python", "triton==3.7.1"}),
        ("0.19.2", (3, 13), {"--no-deps megatron-core=={version}", "triton==3.7.1"}),
    ],
)
def test_megatron_is_built_only_if_its_wheel_is_for_a_later_python(
    monkeypatch: pytest.MonkeyPatch, version: str, python: tuple[int, int], words: set[str]
) -> None:
    script = _script()
    monkeypatch.setattr(sys, "version_info", type("V", (tuple,), {"major": python[0], "minor": python[1]})(python))
    calls = [call["words"] for call in TABLE["megatron"]["install"] if script.wanted(call, version)]
    last = [call for call in calls if "megatron-core" in call or "triton" in call]
    assert len(last) == len(words)
    assert all(any(call.startswith(word) or call.endswith(word) for call in last) for word in words), last


def test_only_what_a_package_moves_is_free_of_the_constraints() -> None:
    script = _script()
    pins = SCRIPT.parents[1].joinpath("constraints.txt").read_text(encoding="utf-8")
    held = next(line for line in pins.splitlines() if line.startswith("transformers=="))
    assert script.constraints(TABLE["transformers"], held.partition("==")[2]) == pins
    other = script.constraints(TABLE["transformers"], "4.57.6")
    assert "torch==" in other
    assert "transformers==" not in other
    assert "fsspec==" in pins
    assert "fsspec==" not in script.constraints(TABLE["torchtitan"], "0.3.0")


@pytest.mark.parametrize("words", [[], ["megatron"], ["nobody", "1.0"]])
def test_a_call_without_a_known_name_and_a_version_is_refused(words: list[str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"NAME one of {', '.join(TABLE)}" in done.stderr

"""`.ci/environment` reads one table of environments: which calls of pip, under which pins."""

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests_unit._parties.running import ran

SCRIPT = Path(__file__).parents[1] / ".ci/environment"
script = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
TABLE: dict[str, Any] = tomllib.loads(SCRIPT.with_name("environments.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("version", "python", "words"),
    [
        ("0.16.1", (3, 12), {"megatron-core=={version}"}),
        ("0.17.0", (3, 11), {"--ignore-requires-python", "triton==3.7.1"}),
        ("0.19.2", (3, 13), {"--no-deps megatron-core=={version}", "triton==3.7.1"}),
    ],
)
def test_megatron_is_built_from_source_only_if_its_wheel_needs_a_later_python(
    monkeypatch: pytest.MonkeyPatch, version: str, python: tuple[int, int], words: set[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", type("V", (tuple,), {"major": python[0], "minor": python[1]})(python))
    calls = [call["words"] for call in TABLE["megatron"]["install"] if script.wanted(call, version)]
    last = [call for call in calls if "megatron-core" in call or "triton" in call]
    assert len(last) == len(words)
    assert all(any(call.startswith(word) or call.endswith(word) for call in last) for word in words), last


def test_an_environments_constraints_leave_out_only_the_packages_it_changes() -> None:
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
    done = ran([sys.executable, SCRIPT, *words], code=2)
    assert f"NAME one of {', '.join(TABLE)}" in done.stderr


def _found(name: str, version: str, **more: object) -> dict[str, object]:
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": "https://x/y", **more}}


def test_locking_refuses_a_package_without_hashes_and_leaves_torch_out() -> None:
    found = [_found("Ruamel_yaml", "1.0"), _found("torch", "2.13.0+cpu"), _found("nvidia-nccl-cu12", "2"),
             _found("rankproof", "0.1", dir_info={"editable": True})]  # fmt: skip
    assert script.checked(found, {"ruamel-yaml==1.0": ["aa", "bb"]}) == [
        "ruamel-yaml==1.0 --hash=sha256:aa --hash=sha256:bb"
    ]
    with pytest.raises(RuntimeError, match=r"no hashes of ruamel-yaml==1\.0, other==2: run \.ci/lock"):
        script.checked([*found, _found("other", "2")], {"ruamel-yaml==2.0": ["aa"]})


def test_each_locked_version_has_hashes_for_its_packages() -> None:
    lock = tomllib.loads(script.LOCK.read_text(encoding="utf-8"))
    locked = {f"{name} {version}": (entry, version) for name, entry in TABLE.items() for version in entry["locked"]}
    assert lock["pins"].keys() == locked.keys()
    assert {each.partition(" ")[0] for pins in lock["pins"].values() for each in pins} == lock["hashes"].keys()
    assert all(known and all(len(one) == 64 for one in known) for known in lock["hashes"].values())
    for name, (entry, version) in locked.items():
        lines = script.constraints(entry, version).lower().replace("_", "-").splitlines()
        pins = dict(line.split("==") for line in lines if "==" in line)
        has = dict(each.partition(" ")[0].split("==") for each in lock["pins"][name])
        assert {each: has[each] for each in has.keys() & pins.keys() if has[each] != pins[each]} == {}, "run .ci/lock"


def test_each_version_that_the_makefile_makes_by_itself_is_locked() -> None:
    text = SCRIPT.parents[1].joinpath("Makefile").read_text(encoding="utf-8")
    for name, variable in {"megatron": "MEGATRON", "torchtitan": "TITAN", "transformers": "TRANSFORMERS",
                           "deepspeed": "DEEPSPEED", "torch": "TORCH"}.items():  # fmt: skip
        wanted = re.findall(rf"\b{variable} \??= (.+)", text)
        assert wanted
        assert {version for each in wanted for version in each.split()} <= {*TABLE[name]["locked"]}

"""The stack table, the running environment, and install plans that the real pip is asked about, on wheels made here."""

import importlib.metadata
import importlib.util
import json
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from contracts.bringup.commands.installation import read_plan, read_table
from contracts.bringup.instruments import pip_plan
from contracts.bringup.instruments.environment import Environment, tools
from contracts.spec import Unreachable
from contracts.spec.installation import InstalledPart, InstallPlan, StackLine
from contracts.spec.stack_table import H200, compare, findings, fits, release, same_version
from tests_unit._parties.running import invoked, metadata, write

NIGHTLY = "2.12.0.dev20260405+cu132"


def wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    """A wheel with metadata and nothing else."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = "".join(f"{line}\n" for line in ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}",
                                                *(f"Requires-Dist: {each}" for each in requires)))  # fmt: skip
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


PLAN = f"""
torch = "{NIGHTLY}"
data_volume = "/mnt/data"
environment = "/mnt/data/venv"
guarded = ["mamba-ssm", "fla-core"]

[[steps]]
name = "venv"
kind = "environment"
words = "python3.13 -m venv /mnt/data/venv"

[[steps]]
name = "torch"
kind = "torch"
words = "pip install --no-index --find-links index torch=={NIGHTLY}"

[[steps]]
name = "mamba"
kind = "packages"
words = "MAMBA"

[[steps]]
name = "fla"
kind = "packages"
words = "FLA"

[[steps]]
name = "verify"
kind = "verify"
words = "python -c 'import torch; assert \\"cu132\\" in torch.__version__'"
"""
GOOD = {"MAMBA": "pip install --no-index kept/mamba_ssm-2.3.1-py3-none-any.whl",
        "FLA": "python -m pip install --no-index --extra-index-url https://u:PLANTED-in-a-plan@host.invalid/x "
               "--find-links index --no-deps fla-core"}  # fmt: skip
PLANS = {
    "good": GOOD,
    "from-the-index": GOOD | {"MAMBA": "pip install --no-index --find-links index mamba-ssm"},
    "two-faults": {
        "MAMBA": "pip install --no-index --find-links index no-such-thing",
        "FLA": "pip install --no-index --find-links index fla-core",
    },
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """What the command says of each plan, with an index in a folder beside it."""
    folder = tmp_path_factory.mktemp("plans")
    for name in ("index", "kept"):
        (folder / name).mkdir()
    wheel(folder / "index", "torch", NIGHTLY, "triton==3.7.0")
    wheel(folder / "index", "torch", "2.5.1", "triton==3.1.0")
    wheel(folder / "index", "triton", "3.7.0")
    wheel(folder / "index", "triton", "3.1.0")
    wheel(folder / "index", "mamba_ssm", "2.3.1", "torch<2.6")
    wheel(folder / "index", "fla_core", "0.4.2", "torch>=2.5")
    wheel(folder / "kept", "mamba_ssm", "2.3.1")  # the same, built before, without dependency metadata

    def ask(name: str) -> Result:
        text = PLAN
        for word, command in PLANS[name].items():
            text = text.replace(word, command)
        (folder / f"{name}.toml").write_text(text)
        return invoked("install-plan", folder / f"{name}.toml", "--json")

    return {name: ask(name) for name in PLANS}


def steps(result: Result) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in json.loads(result.stdout)["plan"]["steps"]}


def problems(result: Result) -> list[str]:
    return [f"{each['field']}: {each['problem']}" for each in json.loads(result.stdout)["findings"]]


def test_the_documented_install_order_keeps_the_torch_nightly(said: dict[str, Result]) -> None:
    good = said["good"]
    assert good.exit_code == 0, good.output
    assert problems(good) == []
    assert steps(good)["torch"]["would_install"] == {"torch": NIGHTLY, "triton": "3.7.0"}
    assert steps(good)["mamba"]["would_install"] == {"mamba_ssm": "2.3.1"}
    assert steps(good)["fla"]["would_install"] == {"fla_core": "0.4.2"}
    assert "PLANTED" not in good.output
    assert "https://[redacted]@host.invalid" in good.output


def test_the_plan_names_the_step_at_which_pip_would_change_torch(said: dict[str, Result]) -> None:
    bad = said["from-the-index"]
    assert bad.exit_code == 1
    assert steps(bad)["mamba"]["would_install"] == {"mamba_ssm": "2.3.1", "torch": "2.5.1", "triton": "3.1.0"}
    assert f"mamba: would move torch from {NIGHTLY} to 2.5.1" in problems(bad)
    assert "mamba: would move triton from 3.7.0 to 3.1.0" in problems(bad)


def test_a_package_that_depends_on_torch_is_refused_without_no_deps(said: dict[str, Result]) -> None:
    assert steps(said["two-faults"])["fla"]["would_install"] == {"fla_core": "0.4.2"}
    assert "fla: comes without --no-deps; fla-core requires torch" in problems(said["two-faults"])


def test_a_step_that_pip_cannot_resolve_proves_nothing(said: dict[str, Result]) -> None:
    assert said["two-faults"].exit_code == 1
    first, _ = problems(said["two-faults"])
    assert first.startswith("mamba: nobody knows what it would install: ERROR: No matching distribution found")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("torch = ", "torches = "), "InstallPlan has no such field"),
        (('kind = "torch"', 'kind = "first"'), "is none of 'environment', 'torch', 'packages', 'verify'"),
        (('name = "torch"\n', 'name = "torch"\nwould_install = {}\n'), "is pip's to say"),
        (("index torch==", "index --target=/opt torch=="), "installs elsewhere: --target=/opt"),
        (("[[steps]]", "[[steps"), "is not TOML"),
    ],
)
def test_a_plan_that_pip_cannot_be_asked_about_ends_in_one_clear_error(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace(*change))
    assert words in invoked("install-plan", tmp_path / "plan.toml", code=2).stderr


def test_a_step_that_is_no_pip_install_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("MAMBA", "touch made").replace("FLA", "uv pip install fla-core"))
    plan = read_plan(tmp_path / "plan.toml")
    only = InstallPlan(torch=plan.torch, data_volume="/", environment="/", steps=plan.steps[2:])
    assert [(step.would_install, step.error) for step in pip_plan.resolve(only, folder=tmp_path).steps] == [
        (None, "it is no `pip install`"), (None, "it is no `pip install`"), ({}, ""),
    ]  # fmt: skip
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2.12.0.dev20260405+cu132", "2.12.0.dev20260405+CU132", True),
        ("3.7.0+git9c288bc5", "3.7+git9c288bc5", True),
        ("4.0.0b7", "4.0.0.b7", True),
        ("2.12.0", "2.12.0+cu132", False),
        ("2.12.0.dev20260405", "2.12.0", False),
        ("1.10", "1.1", False),
        ("", "0", False),
    ],
)
def test_two_spellings_of_a_version_are_equal(one: str, other: str, same: bool) -> None:
    assert same_version(one, other) is same
    assert same_version(other, one) is same


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_a_minimum_version_is_compared_as_numbers(floor: list[int], found: list[int]) -> None:
    line = StackLine(component="driver", version=".".join(map(str, floor)), source="system", at_least=True)
    assert fits(line, ".".join(map(str, found))) == (tuple(found) >= tuple(floor))


@given(st.text())
def test_a_version_without_numbers_satisfies_no_minimum(text: str) -> None:
    line = StackLine(component="driver", version="0", source="system", at_least=True)
    assert fits(line, text) == (release(text) is not None)


def test_the_documented_stack_table_has_all_of_its_lines() -> None:
    assert len(H200.lines) == 20
    assert {line.component for line in H200.lines if line.no_deps} == {"flash-linear-attention", "fla-core"}
    assert len([line for line in H200.lines if line.source == "wheel"]) == 4
    assert findings(H200, ())[0].problem == "is not installed, the table says 3.13.12"
    states = {each.line.component: each.state for each in compare(H200, [InstalledPart(name="GCC", version="11.4")])}
    assert (states["gcc"], states["torch"]) == ("equal", "missing")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a torch that only says what it is, and three packages from three places."""
    env = tmp_path_factory.mktemp("other") / "env"
    venv.create(env, with_pip=False, symlinks=True)
    packages = next(env.glob("lib/python3*/site-packages"))

    def add(name: str, version: str, url: object = None) -> None:
        source = {"direct_url.json": json.dumps(url)} if url else {}
        kind = "Wheel-Version: 1.0\nTag: cp310-cp310-linux_x86_64\n"
        metadata(packages, name, version, INSTALLER="pip\n", WHEEL=kind, **source)

    add("torch", NIGHTLY)
    version = f"__version__ = {NIGHTLY!r}\ncuda = '13.2'\n"
    write(packages, {"torch/__init__.py": "raise SystemExit('imported')\n", "torch/version.py": version})
    add("flash_attn", "2.8.3+cu13torch2.8cxx11abiTRUE", {"url": "file:///w.whl", "archive_info": {}})
    add("flash_linear_attention", "0.5.0", {"url": "https://g/fla", "vcs_info": {"vcs": "git", "commit_id": "0"}})
    add("nanochat", "0.1", {"url": "file:///mnt/data/nanochat", "dir_info": {"editable": True}})
    return env / "bin/python"


def test_an_environment_is_read_without_importing_torch(other: Path) -> None:
    seen = Environment(str(other))
    build = seen.torch
    assert (build.version, build.cuda, build.python_tag) == (NIGHTLY, "13.2", f"cp3{sys.version_info[1]}")
    sources = {part.name: part.source for part in seen.parts()}
    expected = {"torch": "index", "flash_attn": "wheel", "flash_linear_attention": "git", "nanochat": "directory"}
    assert {name: sources[name] for name in expected} == expected
    (flash,) = seen.extensions(["flash-attn"], load=False)
    assert (flash.built_for, flash.cxx11_abi, flash.tag) == ("2.8", True, "cp310-cp310-linux_x86_64")


def test_compiled_modules_are_loaded_beside_torch_and_their_error_is_kept(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    packages = next(tmp_path.glob("env/lib/python3*/site-packages"))
    write(packages, {"torch/__init__.py": ""})
    compiled = Path(importlib.util.find_spec("_bz2").origin)  # type: ignore[union-attr, arg-type]
    (packages / compiled.name).write_bytes(compiled.read_bytes())
    write(packages, {"kernels/fast.so": "not a library", "kernels/libfast.so": "what a module links is no module"})
    for name, files in {"good": [compiled.name], "bad": ["kernels/fast.so", "kernels/libfast.so"]}.items():
        metadata(packages, name, "1.0", RECORD="".join(f"{file},,\n" for file in files))
    found = Environment(str(tmp_path / "env/bin/python")).extensions(["good", "bad"], load=True)
    bad, good = sorted(found, key=lambda each: each.name)
    assert (good.loads, good.error) == (True, "")
    assert bad.loads is False
    assert bad.error.startswith("ImportError: ")
    assert "kernels/fast.so" in bad.error


def test_the_environment_that_is_read_equals_importlibs() -> None:
    seen = {part.name: part.version for part in Environment().parts()}
    assert seen["click"] == importlib.metadata.version("click")
    assert seen["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_path_that_is_no_python_interpreter_is_reported_as_unreachable(tmp_path: Path) -> None:
    for python in (str(tmp_path / "nothing"), "/bin/false", "/bin/echo"):
        with pytest.raises(Unreachable, match="cannot be looked at"):
            Environment(python)


def test_a_tool_that_fails_or_prints_garbage_is_listed_without_a_version(tmp_path: Path) -> None:
    for name, body in {"good": "echo 590.48.01", "fails": "echo 590.48.01; exit 9", "odd": "echo NVIDIA-SMI has failed",
                       "two": "echo 590.48.01; echo 580.1.2", "hoarse": "printf '\\377\\n'"}.items():  # fmt: skip
        write(tmp_path, {name: f"#!/bin/sh\n{body}\n"}, mode=0o755)
    commands = {name: ((str(tmp_path / name),), r"^(\d+(?:\.\d+)+)$")
                for name in ("good", "fails", "odd", "two", "hoarse", "absent")}  # fmt: skip
    assert {part.name: part.version for part in tools(commands)} == {
        "good": "590.48.01", "fails": None, "odd": None, "two": None, "hoarse": None,
    }  # fmt: skip


TABLE = """
[[lines]]
component = "click"
version = "CLICK"
source = "index"

[[lines]]
component = "pytest"
version = "9"
source = "index"
at_least = true
"""


def test_the_command_compares_line_by_line_and_its_exit_code_says_so(tmp_path: Path) -> None:
    table = tmp_path / "ours.toml"
    table.write_text(TABLE.replace("CLICK", importlib.metadata.version("click")))
    assert read_table(table).name == "ours"
    done = invoked("stack", "--table", table, code=0)
    assert "2 of 2 lines of ours are equal" in done.stdout
    table.write_text(TABLE.replace("CLICK", "1.0"))
    done = invoked("stack", "--table", table, "--json", code=1)
    body = json.loads(done.stdout)
    assert [line["state"] for line in body["lines"]] == ["differs", "equal"]
    assert body["findings"][0]["field"] == "click"


def test_the_command_stops_at_binaries_that_do_not_fit(other: Path, tmp_path: Path) -> None:
    table = tmp_path / "h200.toml"
    table.write_text(
        f'[[lines]]\ncomponent = "python"\nversion = "3.{sys.version_info[1]}"\nsource = "system"\nat_least = true\n'
        f'[[lines]]\ncomponent = "torch"\nversion = "{NIGHTLY}"\nsource = "index"\n'
        '[[lines]]\ncomponent = "flash-attn"\nversion = "2.8.3+cu13torch2.8cxx11abiTRUE"\nsource = "wheel"\n'
    )
    done = invoked("stack", "--table", table, "--python", other, code=1)
    assert "3 of 3 lines of h200 are equal" in done.stdout
    assert (
        f"flash_attn = 2.8.3+cu13torch2.8cxx11abiTRUE: was built for torch 2.8, installed is {NIGHTLY}" in done.stdout
    )


def test_a_torch_that_does_not_load_is_found(other: Path) -> None:
    done = invoked("stack", "--python", other, "--load", "--json", code=1)
    (found,) = [each for each in json.loads(done.stdout)["findings"] if "does not load: " in each["problem"]]
    assert (found["field"], found["value"]) == ("torch", NIGHTLY)

"""What is installed: a wheel that is whole, and a plan that does not change the torch that is there.

pip itself is asked, in an environment of its own that holds a torch nightly; nothing is installed by its plans.
"""

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from contracts.spec.former_name import FORMER, NAME
from tests_unit._parties.running import environment, metadata, ran

ROOT = Path(__file__).parents[1]
SEEDS_NIGHTLY = "2.12.0.dev20260405+cu132"  # the torch of the stack this suite was written for
LATER_NIGHTLY = "2.14.0.dev20261101+cu132"
# What titan's tree is large by, and what asks for no torch: there already, so that the plan takes 4 s instead of 18.
BESIDE = {"datasets": "4.7.0", "tensorboard": "2.21.0", "wandb": "0.31.0"}
NO_REGISTRY = (  # pip's and urllib3's words for a registry that cannot be reached
    "Failed to establish a new connection",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Connection to",
    "ProxyError",
    "Read timed out",
)

OPTIONS = ("--disable-pip-version-check", "--retries", "1", "--timeout", "15")


def quietly(*command: str | Path, cwd: Path) -> str:
    """Run, and skip where the package registry is out of reach; anything else that fails is a failure."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_REGISTRY):
        pytest.skip(f"the package registry cannot be reached: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip builds it from a checkout; from a copy, because a build writes beside its sources."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            copy = folder / "checkout" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", *OPTIONS)
    quietly(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "checkout", cwd=folder)
    return next(folder.glob("rankproof-*.whl"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment of its own, with nothing in it."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    return tmp_path / "env" / "bin" / "python"


def pretend(python: Path, name: str, version: str) -> None:
    """Make a distribution look installed."""
    metadata(next(python.parents[1].glob("lib/python3*/site-packages")), name, version, INSTALLER="pip\n", RECORD="")


def plan(python: Path, *wanted: str) -> dict[str, str]:
    """What pip would install into an environment: name → version."""
    folder = python.parents[2]
    pip = (sys.executable, "-m", "pip", "--python", python, *OPTIONS)
    quietly(*pip, "install", "--quiet", "--dry-run", "--report", folder / "plan.json", *wanted, cwd=folder)
    report = json.loads((folder / "plan.json").read_text())
    return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in report["install"]}


@pytest.mark.registry
@pytest.mark.parametrize(
    ("extra", "torch", "brings"),
    [
        pytest.param("", SEEDS_NIGHTLY, "pytest", id="core"),
        pytest.param("[torch,megatron]", SEEDS_NIGHTLY, "megatron-core", id="megatron-beside-the-seeds-nightly"),
        pytest.param("[torch,megatron]", LATER_NIGHTLY, "megatron-core", id="megatron-beside-a-later-nightly"),
        pytest.param("[torch,titan]", SEEDS_NIGHTLY, "torchtitan", id="titan-beside-the-seeds-nightly"),
    ],
)
def test_installing_the_suite_does_not_change_a_torch_nightly(
    wheel: Path, python: Path, extra: str, torch: str, brings: str
) -> None:
    for name, version in ({"torch": torch} | BESIDE).items():
        pretend(python, name, version)
    planned = plan(python, f"rankproof{extra} @ {wheel.as_uri()}")
    assert {"rankproof", brings} <= planned.keys()
    moved = {name: to for name, to in planned.items() if name == "torch" or name.startswith(("nvidia-", "triton"))}
    assert not moved, f"rankproof{extra} beside torch {torch} would also install {moved}"


@pytest.mark.registry
def test_pip_looks_for_another_torch_only_if_the_installed_one_is_too_old(python: Path) -> None:
    # The counterpart, without a registry: what is there does not do, so pip looks for another and finds none.
    pretend(python, "torch", "2.10.0")
    pip = (sys.executable, "-m", "pip", "--python", python, "--isolated", "install", "--dry-run", "--no-index")
    nothing_configured = os.environ | {"PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run([*pip, "torch>=2.11"], env=nothing_configured, capture_output=True, text=True, check=False)
    assert "No matching distribution found for torch>=2.11" in done.stderr


def test_the_core_requires_no_torch_and_no_extra_bounds_it_from_above() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [each for each in project["dependencies"] if "torch" in each]
    extras = {each for wanted in project["optional-dependencies"].values() for each in wanted if each[:6] == "torch>"}
    assert extras == {"torch>=2.11"}


TOLD = ("*.md", "Makefile", "constraints.txt", ".ci", "docs", "contracts", "benchmarks")  # where a user reads commands
OURS = re.compile(  # of a word of `pip install`: a checkout by its path, or this project by a name, and what follows it
    rf"""(?:^|[\s'"])(\.|\$root|{NAME}|{FORMER})(?:\[([a-z,]+)\])?( ?@ ?\S+|-[\d.]+-py3-none-any\.whl)?(?=$|[\s'"`)])"""
)


def install_words() -> list[tuple[str, str, set[str], str]]:
    """Each word of an install line that means this project: where, its name or path, its extras, what follows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *TOLD],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    found = []
    for name in filter(None, listed):
        if not (ROOT / name).is_file():
            continue
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            for command in re.split(r"\bpip install\b", line)[1:]:
                for word, extras, rest in OURS.findall(command.partition("#")[0]):
                    found.append((f"{name}:{number}", word, {*filter(None, extras.split(","))}, rest))
    return found


def test_no_install_command_on_a_page_installs_this_project_from_an_index() -> None:
    """Until a release is on an index, its name there may be anybody's: a line gives a path, a wheel or a URL."""
    found = install_words()
    assert {"README.md", "contracts/harness/torchrun.py"} <= {where.partition(":")[0] for where, *_ in found}
    assert not [each for each in found if each[1] == FORMER or (each[1] == NAME and not each[3])]


@pytest.mark.registry
def test_every_install_command_on_a_page_uses_extras_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        inside = next(name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(packed.read(inside).decode())
    assert metadata["Name"] == NAME
    offered = {*metadata.get_all("Provides-Extra", [])}
    assert not [(where, extras - offered) for where, _, extras, _ in install_words() if extras - offered]
    named = {f"{word}{rest}" for _, word, _, rest in install_words() if rest.endswith(".whl")}
    assert named <= {wheel.name}


@pytest.mark.registry
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "contracts", "rankproof"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shipped = set(zipfile.ZipFile(wheel).namelist())
    assert not {name for name in tracked if (ROOT / name).is_file()} - shipped
    assert {"contracts/py.typed", "rankproof/py.typed"} <= shipped
    assert any(name.endswith("licenses/LICENSE") for name in shipped)


@pytest.mark.registry
def test_the_unpacked_wheel_judges_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import contracts.harness.cli as cli; print(cli.__file__, flush=True); cli.main()"
    done = ran([sys.executable, "-c", code, "check", "--profile", "PAT-01", "--with", "none"], cwd=tmp_path,
               env=os.environ | {"PYTHONPATH": str(tmp_path / "site")}, code=0)  # fmt: skip
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "CONFORMANT" in done.stdout


BESIDE_US = (
    "pytest-xdist",
    "pytest-randomly",
    "pytest-timeout",
    "pytest-rerunfailures",
    "pytest-html",
    "pytest-profiling",
)
OWN_TESTS = """
from rankproof import parametrize_with_contracts
from ours import Ours

@parametrize_with_contracts([Ours()], profile="PAT-01[nam56r],PAT-01[nam52]")
def test_ours(contract):
    contract()

def test_of_the_project(): pass
"""


@pytest.mark.registry
@pytest.mark.parametrize("version", ["==8.0.0", ">=9,<10"], ids=["oldest", "newest"])
def test_the_installed_plugin_works_in_a_projects_own_tests(
    version: str, wheel: Path, python: Path, tmp_path: Path
) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, *OPTIONS)
    quietly(*pip, "install", "--quiet", wheel, f"pytest{version}", *BESIDE_US, cwd=tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "ours.py").write_text((ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8"))
    (project / "test_ours.py").write_text(OWN_TESTS)
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    for words in (
        (),
        ("-n", "2", "--timeout", "60", "--html", "out.html", "--self-contained-html"),
        ("--profile", "--reruns", "1", "-p", "no:xdist"),
    ):
        done = ran([python, "-m", "pytest", *words], cwd=project, env=alone | {"CI": "1"}, limit_s=300, code=1)
        assert "1 failed, 2 passed" in done.stdout, done.stdout
        assert "[PAT-01-nam56r] - Failed: violated: AEMEAEMEAEMR at depth 52 has 48 blocks" in done.stdout
    law = "from contracts.harness.suite import test_unit as test_law\n__all__ = ['test_law']\n"
    (project / "test_ours.py").write_text(law)
    words = ("--rankproof-gate", "--rankproof-stack=ours:Ours", "--rankproof-profile=PAT-01", "--rankproof-report=out")
    for command in ([python, "-m", "pytest", *words, "-n", "2"], [python.with_name("rankproof"), "check", "--stack",
                    "ours:Ours", "--profile", "PAT-01"]):  # fmt: skip
        done = ran(command, cwd=project, env=alone, limit_s=300, code=1)
        assert "VIOLATED: ours 2026.11, profile PAT-01 (" in done.stdout


@pytest.mark.registry
def test_a_repository_with_contracts_of_its_own_has_every_form_of_the_gate(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    """From a wheel: an editable installation is found before such a folder."""
    packages = next(python.parents[1].glob("lib/python3*/site-packages"))
    ours = [place for place in map(Path, sys.path) if (place / "pluggy").is_dir()]
    (packages / "beside.pth").write_text("".join(f"{place}\n" for place in ours))
    pip = (sys.executable, "-m", "pip", "--python", python, *OPTIONS)
    quietly(*pip, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel, cwd=tmp_path)
    project = tmp_path / "project"
    (project / "contracts").mkdir(parents=True)
    (project / "contracts/__init__.py").write_text("X = 1\n")
    (project / "ours.py").write_text((ROOT / "docs/examples/whole_periods/ours.py").read_text(encoding="utf-8"))
    (project / "test_theirs.py").write_text("import contracts\ndef test_theirs():\n    assert contracts.X == 1\n")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    action = (ROOT / "docs/ci/action/action.yml").read_text(encoding="utf-8")
    (content,) = re.findall(r"python (-P -c '.*?')", action)
    judged = ("--stack", "ours:Ours", "--profile", "PAT-01[less-than-a-period]")
    for command, code, words in (
        ([python, "-m", "pytest", "-q"], 0, "1 passed"),
        ([python.with_name("rankproof"), "check", *judged], 1, "VIOLATED: ours 2026.11"),
        ([python.with_name("rankproof"), "check", "--isolated", *judged], 1, "VIOLATED: ours 2026.11"),
        ([python, "-m", "rankproof", "check", *judged], 1, "VIOLATED: ours 2026.11"),
        ([python.with_name("rankproof"), "coverage", *judged], 0, "PAT"),
        ([python, *shlex.split(content)], 0, "key="),
    ):
        assert words in ran(command, cwd=project, env=alone, limit_s=300, code=code).stdout


@pytest.fixture
def bare(python: Path) -> Path:
    """An environment with what the core requires, and neither torch nor development tools."""
    [there] = python.parents[1].glob("lib/python*/site-packages")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "click", "rich", "jinja2", "markupsafe",
                 "pygments", "markdown-it-py", "mdurl"):  # fmt: skip
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {".."}:
            (there / top).symlink_to(distribution.locate_file(top))
    return python


def test_without_torch_and_development_tools_the_other_contracts_are_judged(bare: Path) -> None:
    words = ("-q", "-m", "unit", "-k", "PAT-01 and test_law")
    done = subprocess.run(
        [bare, "-m", "pytest", *words], cwd=ROOT, env=environment(), capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert re.search(r"\n9 passed", done.stdout), done.stdout + done.stderr
    assert "\nleft out: tests that need hypothesis, jsonschema, pytest_timeout, syrupy, xdist or torch; " in done.stdout


def test_a_command_that_needs_torch_says_so_and_other_commands_run(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for words, code in (
        *((each, 2) for each in ("observe --out runs/a train.py", "diff a b", "traffic tiny-nam56r")),
        ("explain PAT-01", 0),
        ("explain BLK-01a", 0),
        ("--version", 0),
    ):
        done = ran([bare, "-m", "rankproof", *words.split()], cwd=tmp_path, env=environment(), code=code)
        assert "torch" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert ("rankproof: torch is not installed" in done.stderr) == (code == 2)
    assert "torch not installed" in done.stdout

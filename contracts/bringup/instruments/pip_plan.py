"""Runs each step of an install plan through `pip --dry-run --report`, with the earlier steps in place.

Nothing is installed. The steps run in an empty environment. After each step, the packages that it would have installed
get fake installations with the metadata that pip reported, and pip resolves against those as against real ones. pip
builds a source distribution or a repository for its metadata, as always.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts.spec import Refusals, Unreachable, interpreter
from contracts.spec.installation import InstallPlan, InstallStep
from contracts.spec.stack_table import normal

ELSEWHERE = ("--target", "-t", "--prefix", "--root", "--user", "--break-system-packages")
"""Options that install outside the environment, where no later step would look."""


def resolve(plan: InstallPlan, *, folder: Path, python: str = sys.executable, timeout: float = 600) -> InstallPlan:
    """The plan with what pip would install at each step.

    Args:
        folder: the base of relative paths in the plan.
        python: the interpreter from which the environment would be created.

    Raises:
        Refused: when a step installs outside the environment.
        Unreachable: when no environment can be created.
    """
    found = Refusals()
    for step in plan.steps:
        beside = [word for word in arguments(step) or () if word.split("=")[0] in ELSEWHERE]
        found.unless(not beside, step.name, " ".join(step.words), f"installs elsewhere: {' '.join(beside)}", "drop it")
    found.raise_any()
    with tempfile.TemporaryDirectory(prefix="rankproof-plan-") as played:
        place = Path(played)
        _make(place / "env", python)
        return replace(plan, steps=tuple(_ask(step, place, folder, timeout) for step in plan.steps))


def arguments(step: InstallStep) -> tuple[str, ...] | None:
    """The arguments of `pip install` in a step; None for any other command.

    `uv pip install` is another command: its resolver has other rules, so pip cannot answer for it.
    """
    if any(Path(word).name == "uv" for word in step.words):
        return None
    for index, word in enumerate(step.words[:-1]):
        if Path(word).name.rstrip("0123456789.") == "pip" and step.words[index + 1] == "install":
            return step.words[index + 2 :]
    return None


def _make(env: Path, python: str) -> None:
    words = [python, "-m", "venv", "--without-pip", str(env)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except OSError as error:
        raise Unreachable(f"{python} cannot be started: {error.strerror}") from error
    if done.returncode:
        raise Unreachable(f"{python} makes no environment: {(done.stderr or done.stdout).strip()}")


def _ask(step: InstallStep, place: Path, folder: Path, timeout: float) -> InstallStep:
    wanted = arguments(step)
    if wanted is None:
        if step.kind in ("environment", "verify"):
            return replace(step, would_install={})
        return replace(step, would_install=None, error="it is no `pip install`")
    report = place / "report.json"
    report.unlink(missing_ok=True)
    python = place / "env/bin/python"
    pip = interpreter.python("-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input")
    words = [*pip, "install", "--quiet", "--dry-run", "--report", str(report), *wanted]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return replace(step, would_install=None, error=f"pip did not answer within {timeout:g} s")
    if done.returncode or not report.exists():
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        return replace(step, would_install=None, error=errors[-1] if errors else f"pip ended with {done.returncode}")
    installed = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    for metadata in installed:
        _pretend(python, metadata)
    return replace(
        step,
        would_install={each["name"]: each["version"] for each in installed},
        requires={each["name"]: tuple(each.get("requires_dist", ())) for each in installed},
    )


def _pretend(python: Path, metadata: dict[str, Any]) -> None:
    """Create a fake installation of a distribution, in place of any other version of it."""
    packages = next(python.parents[1].glob("lib/python3*/site-packages"))
    name, version = metadata["name"], metadata["version"]
    for former in packages.glob("*.dist-info"):
        if normal(former.name.split("-")[0]) == normal(name):
            for file in former.iterdir():
                file.unlink()
            former.rmdir()
    here = packages / f"{normal(name).replace('-', '_')}-{version}.dist-info"
    here.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in metadata.get("requires_dist", ())]
    lines += [f"Provides-Extra: {each}" for each in metadata.get("provides_extra", ())]
    (here / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (here / "INSTALLER").write_text("pip\n", encoding="utf-8")
    (here / "RECORD").touch()

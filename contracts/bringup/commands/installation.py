"""`stack` and `install-plan`: the running environment against a stack table, and a plan proved by pip's dry run."""

import shlex
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from contracts.bringup.instruments import pip_plan
from contracts.bringup.instruments.environment import Environment
from contracts.harness.commands._errors import one_clear_error, show, show_json
from contracts.spec import Unreachable, codec, install_plan, refuse, stack_table
from contracts.spec.installation import InstalledPart, InstallPlan, StackTable, TorchBuild
from contracts.spec.machine import Finding
from contracts.spec.records import EXIT_CODES

SAMPLE = "give a TOML file; `rankproof sample` prints one to begin with"


@click.command()
@click.option("--table", metavar="FILE.toml", help="The stack table; default: that of the H200 hosts, cu132.")
@click.option("--python", default=sys.executable, metavar="PATH", help="The interpreter of the environment.")
@click.option("--load", is_flag=True, help="Also import torch and the compiled packages of the table.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
@one_clear_error
def stack(table: str | None, python: str, load: bool, as_json: bool) -> None:
    """Compare what is installed with a stack table, line by line."""
    stated = stack_table.H200 if table is None else read_table(Path(table))
    compared, findings = compare_installed(stated, Environment(python), load=load)
    if as_json:
        lines = [{**codec.encode(each), "found": codec.encode(each.found)} for each in compared]
        show_json({"table": stated.name, "lines": lines, "findings": codec.encode(findings)})
    else:
        for each in compared:
            version = f"{each.line.version}{'+' if each.line.at_least else ''}"
            found = ", ".join(part.version or "no version" for part in each.found) or "-"
            show(f"{each.state:<13} {each.line.component:<24} {version:<28} {found}")
        equal = sum(each.state == "equal" for each in compared)
        click.echo(f"{equal} of {len(compared)} lines of {stated.name} are equal")
        show_each(each for each in findings if each.promise != "INST-01")
    sys.exit(EXIT_CODES["violated"] if findings else 0)


@click.command(name="install-plan")
@click.argument("plan", metavar="PLAN.toml")
@click.option("--python", default=sys.executable, metavar="PATH", help="The interpreter the environment is made from.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
@one_clear_error
def check_install_plan(plan: str, python: str, as_json: bool) -> None:
    """Ask pip what each step of PLAN.toml would install, and refuse a plan that could move torch.

    Nothing is installed: pip is asked with --dry-run, in an empty environment in which the steps before it look done.
    """
    asked = pip_plan.resolve(read_plan(Path(plan)), folder=Path(plan).resolve().parent, python=python)
    findings = install_plan.plan_findings(asked)
    if as_json:
        show_json({"plan": codec.encode(asked), "findings": codec.encode(findings)})
    else:
        for step in asked.steps:
            brings = " ".join(f"{name}=={version}" for name, version in (step.would_install or {}).items())
            click.echo(f"{step.name:<16} {brings or ('-' if step.would_install is not None else 'unknown')}")
        show_each(findings)
        click.echo(f"torch {asked.torch} " + ("may be moved: the plan is refused" if findings else "stays"))
    sys.exit(EXIT_CODES["violated"] if findings else 0)


def compare_installed(
    stated: StackTable, environment: Environment, *, load: bool = False
) -> tuple[tuple[stack_table.Compared, ...], tuple[Finding, ...]]:
    """Every line of a stack table against an environment, and what stands against a launch in it."""
    parts = environment.parts()
    broken: tuple[Finding, ...] = ()
    if load and environment.torch is not None:
        try:
            parts += _beside(parts, environment.runtime())
        except Unreachable as error:
            version = environment.torch.version
            broken = (Finding(promise="INST-03", field="torch", value=version, problem=f"does not load: {error}",
                              remedy="stop: do not just try training"),)  # fmt: skip
    findings = stack_table.findings(stated, parts) + broken
    wanted = _build(stated)
    if wanted is not None:
        names = [line.component for line in stated.lines if line.source in ("wheel", "git")]
        findings += install_plan.torch_findings(wanted, environment.torch, environment.extensions(names, load=load))
    return stack_table.compare(stated, parts), findings


def _beside(parts: Iterable[InstalledPart], runtime: Iterable[InstalledPart]) -> tuple[InstalledPart, ...]:
    """What torch reports of its own libraries, where no distribution does: it would otherwise be there twice."""
    held = {stack_table.normal(part.name) for part in parts}
    return tuple(each for each in runtime if not any(name.startswith(f"nvidia-{each.name}") for name in held))


def show_each(findings: Iterable[Finding]) -> None:
    for finding in findings:
        show(str(finding))


def read_toml(path: Path) -> dict[str, Any]:
    """
    Raises:
        Refused: when the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse("file", str(path), f"cannot be read: {error.strerror}", SAMPLE) from None
    except (ValueError, RecursionError) as error:  # not UTF-8 either
        raise refuse("file", str(path), f"is not TOML: {error}", "give a TOML file") from None


def read_table(path: Path) -> StackTable:
    """A stack table from a file of `[[lines]]`."""
    return codec.decode(StackTable, {"name": path.stem, **read_toml(path)}, name=path.name)


def read_plan(path: Path) -> InstallPlan:
    """A plan from a file of `[[steps]]`; a step's words may be written as one shell line."""
    data = read_toml(path)
    for step in data.get("steps", ()) if isinstance(data.get("steps"), list) else ():
        if isinstance(step, dict) and isinstance(step.get("words"), str):
            try:
                step["words"] = shlex.split(step["words"])
            except ValueError as error:
                raise refuse("steps.words", step["words"], f"is no line of a shell: {error}", "close it") from None
        for observed in ("would_install", "requires", "error"):
            if isinstance(step, dict) and observed in step:
                raise refuse(f"steps.{observed}", step[observed], "is pip's to say", "leave it out of the file")
    return codec.decode(InstallPlan, data, name=path.name)


def _build(table: StackTable) -> TorchBuild | None:
    """The torch that a table asks for; None when it has no such line, or one without a CUDA tag."""
    lines = {stack_table.normal(line.component): line for line in table.lines}
    if "torch" not in lines or "python" not in lines:
        return None
    version = lines["torch"].version
    tag = version.partition("+")[2]
    numbers = stack_table.release(lines["python"].version) or ()
    if not (tag.startswith("cu") and tag[2:].isdigit() and len(numbers) >= 2):
        return None
    return TorchBuild(version=version, cuda=f"{tag[2:-1]}.{tag[-1]}", python_tag=f"cp{numbers[0]}{numbers[1]}")

"""`preflight`: whether this node, or several that were captured, may be launched on.

Fabric, devices, memory and host settings always; the environment with a recipe; the disks and the installed stack with
the file that says what they should be.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from contracts.bringup.commands.installation import compare_installed, read_table
from contracts.bringup.commands.storage import places_on_this_host, read_map
from contracts.bringup.instruments.environment import Environment
from contracts.court.party import OnTheStand
from contracts.harness import parties
from contracts.harness.commands._errors import one_clear_error, the_stack_talks_to_stderr
from contracts.instruments.node import read_node
from contracts.spec import Lane, NotOffered, Recipe, Refused, codec, refuse, stack_table
from contracts.spec.machine import Finding, Need, NodeCapture, RankPlace

REFUSED = 1

_Findings = tuple[Finding, ...]


@click.command()
@click.option("--recipe", help="Preset: each GPU must have the memory it was planned for.")
@click.option("--gpus", type=int, default=8, show_default=True, help="GPUs of one node, a rank each.")
@click.option("--link", default="NV18", show_default=True, help="What every GPU–GPU cell must read.")
@click.option("--nodes", type=int, default=1, show_default=True, help="More than one: give captures and --ranks.")
@click.option("--capture", "files", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
              help="Judge a node captured before, not this one; once for each node, in order.")  # fmt: skip
@click.option("--ranks", metavar="FILE", type=click.Path(path_type=Path),
              help="JSON list of places: rank, host, local_rank, device, nic.")  # fmt: skip
@click.option("--storage", metavar="MAP.toml", type=click.Path(path_type=Path),
              help="Also judge where this node's state would lie; see `rankproof storage`.")  # fmt: skip
@click.option("--table", metavar="FILE.toml", help="Also judge what is installed; `h200` is the table that ships here.")
@click.option("--python", default=sys.executable, metavar="PATH", help="The interpreter that --table is about.")
@click.option("--print-capture", is_flag=True, help="Print what this node says, as JSON for --capture; judge nothing.")
@click.option("--stack", default="reference", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def preflight(
    recipe: str | None, gpus: int, link: str, nodes: int, files: tuple[Path, ...], ranks: Path | None,
    storage: Path | None, table: str | None, python: str, print_capture: bool, stack: str, as_json: bool,
) -> None:  # fmt: skip
    """Refuse a node that is not fit for a run: every reason at once, each with what to do.

    Exit code 0 when nothing stands against a launch, 1 when something does, 2 for bad input.
    """
    if print_capture:
        click.echo(json.dumps(codec.encode(read_node()), indent=2))
        return
    if nodes < 1 or ((files or nodes > 1) and len(files) != nodes):
        raise refuse("--capture", len(files), f"must be given once for each of {nodes} nodes", "see --print-capture")
    if files and (storage or table):
        raise refuse("--capture", len(files), "was taken elsewhere", "ask --storage and --table on the node itself")
    places = read_map(storage) if storage else None
    stated = None if table is None else stack_table.H200 if table == "h200" else read_table(Path(table))
    asked = ("preflight", *(("rank_map",) if nodes > 1 or ranks else ()), *(("preset", "launch") if recipe else ()),
             *(("check_storage",) if places else ()))  # fmt: skip
    with the_stack_talks_to_stderr():
        subject = parties.load(stack)
    party: Any = OnTheStand(subject, (), asked)
    if party.missing:
        raise NotOffered(f"{subject.name} does not offer {', '.join(party.missing)}")
    settled = party.preset(recipe, ()) if recipe else None
    need = Need(gpus=gpus, link=link, hbm_gb=settled.hbm_gb if settled else 0)
    captures = tuple(_read(NodeCapture, file) for file in files) or (read_node(),)
    where = _read(tuple[RankPlace, ...], ranks) if ranks else None
    found: dict[str, _Findings] = {}
    for capture in captures:
        found[capture.host] = (*found.get(capture.host, ()), *party.preflight(capture, need))
    if where is not None:
        found["ranks"] = party.rank_map(captures, where, need)
    elif nodes > 1:
        found["ranks"] = (_UNKNOWN,)
    if settled and not files:
        found["environment"] = _environment(party, settled, gpus)
    if places is not None:
        found["disks"] = party.check_storage(places, places_on_this_host(places))
    if stated is not None:
        found["stack"] = compare_installed(stated, Environment(python))[1]
    click.echo(_as_json(found, need, captures) if as_json else _as_text(found, need))
    sys.exit(REFUSED if any(found.values()) else 0)


_UNKNOWN = Finding(
    promise="PREF-04", field="ranks", value="nothing", problem="nobody says which rank is on which device and NIC",
    remedy="give --ranks; `NCCL_DEBUG=INFO` prints the NIC of each rank",
)  # fmt: skip


_PROMISES = {"NCCL_MNNVL_ENABLE": "ENV-05", "PYTORCH_CUDA_ALLOC_CONF": "ENV-03", "CUDA_VISIBLE_DEVICES": "ENV-06"}


def _environment(party: Any, recipe: Recipe, gpus: int) -> _Findings:
    """What in this shell's environment keeps the recipe from being launched, in any lane that it has."""
    lane = Lane(mode=recipe.modes[0], gpus=gpus, inherited=dict(os.environ))
    try:
        party.launch(recipe, lane)
    except Refused as refused:
        return tuple(
            Finding(promise=_PROMISES.get(each.field, "REC-02"), field=each.field, value=each.value,
                    problem=each.problem, remedy=each.remedy)
            for each in refused.refusals
        )  # fmt: skip
    return ()


def _read(kind: Any, file: Path) -> Any:
    """A value from a JSON file.

    Raises:
        Refused: when the file cannot be read or holds something else.
    """
    try:
        text = file.read_bytes()
    except OSError as error:
        raise refuse(str(file), "unread", error.strerror or str(error), "give a file that can be read") from None
    try:
        return codec.loads(kind, text.decode("utf-8"), name=file.name)
    except UnicodeDecodeError as error:
        raise refuse(str(file), "unread", f"is not UTF-8: {error.reason}", "write it with --print-capture") from None


def _as_text(found: dict[str, _Findings], need: Need) -> str:
    memory = f", {need.hbm_gb} GB each" if need.hbm_gb else ""
    lines = [f"need: {need.gpus} GPUs a node, {need.link} between them{memory}"]
    for where, findings in found.items():
        lines.append(f"{where}: {'fit' if not findings else f'{len(findings)} against a launch'}")
        for each in findings:
            lines += [f"  {each.promise} {each.field} = {each.value}: {each.problem}", f"      {each.remedy}"]
    lines.append(
        "refused" if any(found.values()) else "fit; its bandwidth is measured by contracts.instruments.allreduce"
    )
    return "\n".join(lines)


def _as_json(found: dict[str, _Findings], need: Need, captures: tuple[NodeCapture, ...]) -> str:
    body = {
        "fit": not any(found.values()),
        "need": codec.encode(need),
        "findings": {where: codec.encode(findings) for where, findings in found.items()},
        "captures": codec.encode(captures),
    }
    return json.dumps(body, indent=2)

"""`storage`: where a run's state would lie on this host."""

import os
import shlex
import sys
from pathlib import Path

import click

from contracts.bringup.commands.installation import read_toml, show_each
from contracts.bringup.instruments.mounts import disks
from contracts.harness.commands._errors import one_clear_error, show_json
from contracts.spec import codec, storage
from contracts.spec.installation import Disks, StorageMap
from contracts.spec.records import EXIT_CODES

PLACES = ("durable", "scratch", "receipts", "data")


def read_map(path: Path) -> StorageMap:
    """A storage map from its file.

    Raises:
        Refused: when the file cannot be read, or does not name the five places.
    """
    return codec.decode(StorageMap, read_toml(path), name=path.name)


def places_on_this_host(places: StorageMap, *also: str) -> Disks:
    """The mounts and links of this host that a storage map, and other paths, lead to."""
    return disks([*(getattr(places, name) for name in PLACES), *also])


@click.command(name="storage")
@click.argument("map_", metavar="MAP.toml")
@click.option("--run", metavar="NAME", help="Also look at the caches of this run, under the environment of this shell.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
@one_clear_error
def check_storage(map_: str, run: str | None, as_json: bool) -> None:
    """Refuse a storage map whose places lie on the root volume, in one another, or somewhere else than they say.

    MAP.toml names durable, scratch, receipts, data and data_volume.
    """
    places = read_map(Path(map_))
    caches = {} if run is None else storage.cache_directories(places, run)
    host = places_on_this_host(places, *filter(None, map(os.environ.get, caches)))
    findings = storage.storage_findings(places, host)
    if run is not None:
        findings += storage.cache_findings(places, host, run, dict(os.environ))
    if as_json:
        body = {"map": codec.encode(places), "findings": codec.encode(findings), "caches": caches}
        show_json(body)
    else:
        for name in PLACES:
            click.echo(f"{name:<9} {getattr(places, name)}")
        show_each(findings)
        if any(finding.promise == "STOR-03" for finding in findings):
            variables = storage.cache_environment(places, run) if run is not None else {}
            click.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
        click.echo("refused" if findings else "each place is where it should be")
    sys.exit(EXIT_CODES["violated"] if findings else 0)

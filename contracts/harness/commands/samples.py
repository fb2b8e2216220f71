"""`sample`: files for the commands that read one, to begin with."""

from pathlib import Path

import click

FOLDER = Path(__file__).parents[1] / "samples"
FILES = tuple(sorted(path.name for path in FOLDER.iterdir()))


@click.command()
@click.argument("name", type=click.Choice(FILES))
def sample(name: str) -> None:
    """Print a file to begin with: the map of `storage`, the plan of `install-plan`, the table of `stack`, the spans of
    `goodput`, the deviations of `check`. `launch` writes the receipts and folders that `compare` and `triage` read."""
    click.echo((FOLDER / name).read_text(encoding="utf-8"), nl=False)

"""The token-choice layer, beside what a user would take instead, in one run on one device.

    python -m benchmarks --device cuda --out reports/gpu
    python -m benchmarks --device cpu --small

Prints Markdown, each row as it is measured; `--out` keeps it, and the figures as JSON, in a folder. Nothing is
installed: a peer that is not there is a row that says so. The ratios of a table hold among its rows; the ceilings are
measured in the same process.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import moe
from benchmarks._measure import HEADER, Row, ceiling, line
from contracts.instruments.atomic_write import write_whole


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU does in a minute; no figures to quote")
    parser.add_argument("--out", type=Path, metavar="DIR")
    asked = parser.parse_args(argv)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch sees no CUDA device; --device cpu --small shows that this runs", file=sys.stderr)  # noqa: T201
        return 3
    facts = about(asked.device, asked.small)
    told = Told(asked.out)
    told.say(f"## {' · '.join(facts.values())}\n")
    top = ceiling(asked.device, asked.small)
    told.say(f"one bfloat16 product {top.flops / 1e12:.3g} TFLOP/s, one copy {top.bytes / 1e9:.3g} GB/s")
    tables: dict[str, list[Row]] = {}
    for title, row in moe.measured(asked.device, asked.small):
        rows = tables.setdefault(title, [])
        rows.append(row)
        if len(rows) == 1:
            told.say(HEADER.format(title=title))
        told.say(line(row, rows[0].seconds, top))
        told.keep({"facts": facts, "ceiling": asdict(top), "tables": {t: [*map(asdict, r)] for t, r in tables.items()}})
    return 0


class Told:
    """The measurements so far, printed at once and kept in a folder: a run that is cut off leaves what it has."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.lines = folder, list[str]()

    def say(self, line: str) -> None:
        print(line, flush=True)  # noqa: T201
        self.lines.append(line)

    def keep(self, figures: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "benchmarks.md", "\n".join(self.lines) + "\n")
            write_whole(self.folder / "benchmarks.json", json.dumps(figures, indent=1) + "\n")


def about(device: str, small: bool) -> dict[str, str]:
    """The settings without which a figure is worth nothing."""
    named = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+dirty"], capture_output=True, text=True, check=False
    )
    return {
        "device": named + (" (small sizes)" if small else ""),
        "torch": f"torch {torch.__version__}",
        "python": f"Python {platform.python_version()}",
        "commit": f"commit {done.stdout.strip() or 'unknown'}",
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The layers that decide a step's time, beside what a user would take instead, in one run on one device.

    python -m benchmarks --device cuda --out reports/gpu
    python -m benchmarks --device cpu --small

Prints Markdown; `--out` writes it, and the figures as JSON, into a folder. Nothing is installed: a peer that is not
there is a row that says so. The ratios of a table hold among its rows; the ceilings are measured in the same process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import moe, scan
from benchmarks._measure import as_json, ceiling, table


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU does in a minute; no figures to quote")
    parser.add_argument("--only", choices=("moe", "scan"))
    parser.add_argument("--out", type=Path, metavar="DIR")
    asked = parser.parse_args(argv)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch sees no CUDA device; --device cpu --small shows that this runs", file=sys.stderr)  # noqa: T201
        return 3
    facts = about(asked.device, asked.small)
    top = ceiling(asked.device, asked.small)
    told, figures = [f"## {' · '.join(facts.values())}", ""], {"facts": facts, "ceiling": asdict(top), "tables": {}}
    told.append(f"one bfloat16 product {top.flops / 1e12:.3g} TFLOP/s, one copy {top.bytes / 1e9:.3g} GB/s")
    for name, subject in (("moe", moe), ("scan", scan)):
        for title, rows in (subject.rows(asked.device, asked.small) if asked.only in (None, name) else {}).items():
            told += ["", table(f"{name}: {title}", rows, top)]
            figures["tables"][f"{name}: {title}"] = as_json(rows)  # type: ignore[index]
    text = "\n".join(told) + "\n"
    print(text)  # noqa: T201
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "benchmarks.md").write_text(text)
        (asked.out / "benchmarks.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def about(device: str, small: bool) -> dict[str, str]:
    """What a figure is worth nothing without."""
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

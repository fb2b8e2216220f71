"""How long a trace of many ranks takes to read and judge, without running them: NAM56R's tensors, as its parameter
table has them, on TP 8, PP 4 and the rest data parallel, three steps.

    python -m benchmarks.merged [--ranks 4096]

Ranks that hold the same part write the same lines, with fingerprints, and the first of them the sketches, as the
recorder does. Prints Markdown.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from contracts.observe.trace import SKETCH_BYTES, VERSION, lines_of, sketches_of
from contracts.spec import parameters
from contracts.spec.presets import NAM56R

TP, PP, STEPS = 8, 4, 3


def _stage(pp: int) -> list[tuple[str, parameters.Tensor]]:
    layers = parameters.blocks(NAM56R)
    size = -(-len(layers) // PP)
    named = [
        (f"layers.{at}.{each.name}", each) for at, layer in enumerate(layers) if at // size == pp for each in layer
    ]
    ends = [*(parameters.embedding(NAM56R) if pp == 0 else ()), *(parameters.head(NAM56R) if pp == PP - 1 else ())]
    return [*((each.name, each) for each in ends), *named]


def _lines(tp: int, pp: int, data: range, first: bool) -> Iterator[dict[str, object]]:
    """What a rank writes; only the first of its replicas has sketches."""
    tensors, number = _stage(pp), 0
    yield {"e": "root", "number": 0, "type": "GPT", "replicas": [], "data": [*data], "frozen": [], "compiled": False,
           "trainable": [name for name, _ in tensors]}  # fmt: skip

    def all_of(kind: str, step: int, sketched: bool, **more: object) -> Iterator[dict[str, object]]:
        nonlocal number
        for name, each in tensors:
            part = str(tp) if each.share != "replicated" else ""
            write = sketched and first and (tp == 0 or bool(part))
            yield {"e": kind, "step": step, "shape": [each.whole], "dtype": "float32", "part": part, "partial": False,
                   "bits": f"{hash((name, step, kind, part)) % 2**64:016x}", "squares": 1.0, "name": name,
                   "sketch": number if write else None, **more}  # fmt: skip
            number += write

    for step in range(1, STEPS + 2):
        yield {"e": "modes", "step": step, "evaluating": [], "count": 0}
        yield from all_of("weight", step, step == 1)
        if step > STEPS:
            return
        yield {"e": "loss", "step": step, "backward": 1, "value": 1.0}
        yield from all_of("gradient", step, sketched=True)
        yield {"e": "group", "step": step, "optimizer": "AdamW 1", "number": 0, "names": [name for name, _ in tensors],
               "lr": 1e-3, "told": None, "decay": 0.1}  # fmt: skip
        yield from all_of("updated", step, sketched=True)
        for moment in ("exp_avg", "exp_avg_sq"):
            yield from all_of("moment", step, sketched=False, moment=moment)
        yield {"e": "step", "step": step, "backward": 1, "microbatches": 1}


def _write(folder: Path, ranks: int) -> None:
    for cell in range(TP * PP):
        tp, pp = cell % TP, cell // TP
        data = range(cell, ranks, TP * PP)
        for first in (True, False):
            lines = [json.dumps(each, separators=(",", ":")) for each in _lines(tp, pp, data, first)]
            sketches = sum('"sketch":null' not in each and '"sketch"' in each for each in lines)
            end = {"e": "end", "error": "", "full": False, "steps": STEPS, "unseen": {}}
            for rank in data[:1] if first else data[1:]:
                begin = {"e": "begin", "version": VERSION, "rank": rank, "world": ranks, "command": ["train.py"],
                         "run": "dry", "torch": "", "device": "", "perturb": None, "shims": ""}  # fmt: skip
                rows = {"e": "input", "microbatch": 1, "rows": [rank], "random": str(rank), "tensors": {}}
                mine = [json.dumps({**rows, "step": step}, separators=(",", ":")) for step in range(1, STEPS + 1)]
                text = "\n".join([json.dumps(begin), *lines, *mine, json.dumps(end)]) + "\n"
                lines_of(folder, rank).write_text(text, encoding="utf-8")
                with sketches_of(folder, rank).open("wb") as file:
                    os.truncate(file.fileno(), sketches * SKETCH_BYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4096)
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), ranks)
        files = [each.stat().st_size for each in Path(folder).iterdir()]
        begin = time.monotonic()
        command = (sys.executable, "-m", "contracts.harness.cli", "judge", folder, "--report", f"{folder}/report")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        took, used = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(  # noqa: T201
        f"{done.stdout.splitlines()[-1]}\n\n| ranks | {ranks} |\n|---|---|\n| trace | {sum(files) / 2**20:.0f} MiB |\n"
        f"| read and judged | {took:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU |\n"
        f"| memory | {used.ru_maxrss / 2**20:.1f} GiB |"
    )


if __name__ == "__main__":
    main()

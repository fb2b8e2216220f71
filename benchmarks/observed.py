"""What observing costs a training step: steps of the nano script observed and not, in turn, in one process.

    OMP_NUM_THREADS=1 python -m benchmarks.observed

CPU time of the process: the median over pairs of the second of two observed steps, which sketches every gradient,
updated weight and output of a module, against plain steps before and after it. Memory: how much
more torch has allocated at its peak in the first two observed steps than in two plain ones, the tables of hashes
included, which are made then and stay; in parts of the weights. Prints Markdown.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.observed_device import Training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=4096)
    asked = parser.parse_args()
    training = Training("cpu", asked.width, asked.tokens, 4096, 4, None)

    def step() -> float:
        return training.step(time.process_time)

    def observed(folder: Path) -> float:
        with training.observed(folder, 2):
            return [step(), step()][1]

    def highest(run: Callable[[], object]) -> int:
        """Bytes that torch has allocated at the most, beyond those that it had."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            run()
        events = seen.profiler.kineto_results.events()  # private; torch 2.13
        order = sorted((each for each in events if each.name() == "[memory]"), key=lambda each: each.start_ns())
        return max(itertools.accumulate(each.nbytes() for each in order))

    step()
    with tempfile.TemporaryDirectory() as folder:
        more = highest(lambda: observed(Path(folder, "memory"))) - highest(lambda: (step(), step()))
        plain, seen = [step()], []
        for pair in range(asked.pairs):
            seen.append(observed(Path(folder, str(pair))))
            plain.append(step())
        written = sum(each.stat().st_size for each in Path(folder, "0").iterdir())
    ratios = [each / ((before + after) / 2) - 1
              for before, each, after in zip(plain, seen, plain[1:], strict=False)]  # fmt: skip
    count = sum(each.numel() for each in training.model.parameters())
    print(  # noqa: T201
        f"{count / 1e6:.1f} M parameters, {asked.tokens} tokens, {torch.get_num_threads()} thread(s), torch "
        f"{torch.__version__}\n\n| | median | over {asked.pairs} pairs |\n|---|---|---|\n"
        f"| plain step | {statistics.median(plain):.2f} s | {min(plain):.2f} … {max(plain):.2f} |\n"
        f"| observed step | {statistics.median(seen):.2f} s | {min(seen):.2f} … {max(seen):.2f} |\n"
        f"| more | {statistics.median(ratios):.0%} | {min(ratios):.0%} … {max(ratios):.0%} |\n"
        f"| memory at its peak, more | {more / 2**20:.1f} MiB | {more / (4 * count):.1%} of the weights |\n"
        f"| trace of 2 steps and the first weights | {written / 2**20:.1f} MiB | |"
    )


if __name__ == "__main__":
    main()

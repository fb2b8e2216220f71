"""Documented bugs of public stacks, planted in training scripts that are observed: which are seen, and what is named.

    python -m benchmarks.planted [--only BUG,BUG] [--scripts nano,small,trainer,megatron]

planted.toml has them, and traincheck.toml the faults of TrainCheck's public reproductions (--plants traincheck): a
script of docs/examples, or the reference's small one, with a few words changed, judged (`rankproof judge --like`)
beside the healthy script on one rank, uninterrupted or without recomputation. Each is the bug of that id
(docs/detection.md), or a relative of its family that such a script can have. It is seen where a contract is violated,
or where `diff` says that the runs cannot be compared, and named where the first words of `diff`, or else of the first
contract about one run, are of the guilty place. A script that dies was planted wrong, and ends this. Prints Markdown;
exit code 1 under 90 % seen or 80 % named. Scripts of a stack that is not installed are left out, and said.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.contract import LAW
from contracts.harness.families import read_checks
from contracts.observe.party import Observed
from contracts.observe.trace import read
from contracts.spec import NotOffered
from contracts.stacks.reference.answers.observing import SCRIPT, observe

ROOT = Path(__file__).parents[1]
EXAMPLES, REAL = ROOT / "docs/examples", ROOT / "contracts/stacks/scripts"
read_checks()

SCRIPTS = {"nano": EXAMPLES / "observe_nano.py", "small": SCRIPT, "trainer": REAL / "train_transformers.py",
           "megatron": REAL / "train_megatron.py", "pipeline": EXAMPLES / "observe_pipeline.py"}  # fmt: skip
INSTALLED = {"trainer": ".venv-transformers-5.23.0", "megatron": ".venv-megatron-0.19.2"}
PLAIN = ("--dropout", "0")


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A bug: the words of a script and what stands there instead, and the place that is guilty, as an expression.
    `meant` are words of the healthy script that are exchanged first."""

    bug: str
    script: str
    edits: tuple[tuple[str, str], ...]
    guilty: str
    meant: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    ranks: int = 2
    like: str = "one-rank"


def _plants(name: str) -> Iterator[Plant]:
    for each in tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))["plant"]:
        pairs = {field: tuple((old, new) for old, new in each.get(field, ())) for field in ("edits", "meant")}
        yield Plant(**{**each, **pairs, "words": tuple(each.get("words", ()))})


def _edited(plant: Plant, edits: tuple[tuple[str, str], ...]) -> str:
    text = SCRIPTS[plant.script].read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            raise SystemExit(f"{plant.bug}: {old!r} stands {text.count(old)} times in the {plant.script} script")
        text = text.replace(old, new)
    return text


def _healthy(plant: Plant) -> tuple[int, tuple[str, ...]]:
    """The ranks and words of the run that a planted one must equal."""
    if plant.script != "small":
        return 1, ("--steps", "2")
    return {"one-rank": (1, PLAIN), "whole": (1, ("--steps", "3", "--save", "{file}")), "plain": (1, ()),
            "judged": (2, ())}[plant.like]  # fmt: skip


def _run(home: Path, script: str, text: str, ranks: int, words: tuple[str, ...], file: Path) -> Path:
    """The trace of a script, of which the folder `home` is made."""
    if (home / "trace").exists():
        return home / "trace"
    home.mkdir()
    (home / "train.py").write_text(text, encoding="utf-8")
    told = ["train.py", *(each.format(file=file) for each in words)]
    if script not in INSTALLED:
        observe(home, told, home / "trace", ranks)
    else:
        python = ROOT / INSTALLED[script] / "bin/python"
        shims = ["--on-cpu", "megatron"] if script == "megatron" else []
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
        observing = [python, "-P", "-W", "ignore", "-m", "rankproof", "observe", "--out", home / "trace", *shims]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (home / "said").open("w") as said:
            subprocess.run(
                [python, *torchrun, *observing, *told], cwd=home, env=env, stdout=said, stderr=said, check=False
            )
    if not (home / "trace").exists():
        raise SystemExit(f"nothing was observed in {home}")
    return home / "trace"


def judged(trace: Path, like: str, healthy: Path) -> dict[str, str]:
    party = Observed(read(trace), {} if like == "judged" else {like: healthy})
    found = {}
    for id, each in LAW.contracts.items():
        for given in each.cases.values() if id.startswith("OBS-") else ():
            try:
                each.check(party, *given)
            except NotOffered as why:
                if "cannot be compared" in str(why):
                    found["diff"] = str(why)
            except AssertionError as wrong:
                found[id] = str(wrong)
    return found


PAIRS = ("OBS-01", "OBS-09", "OBS-11")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="bugs, with commas")
    parser.add_argument("--scripts", default=",".join(SCRIPTS), help="in which scripts, with commas")
    parser.add_argument("--plants", default="planted", help="of which files, with commas")
    asked = parser.parse_args()
    plants = [each for name in asked.plants.split(",") for each in _plants(name)]
    only = {each for each in asked.only.split(",") if each}
    rows, away = [], set()
    with tempfile.TemporaryDirectory() as folder:
        for number, plant in enumerate(plants):
            if (only and plant.bug not in only) or plant.script not in asked.scripts.split(","):
                continue
            if plant.script in INSTALLED and not (ROOT / INSTALLED[plant.script]).exists():
                away.add(plant.script)
                continue
            file = Path(folder, "state.pt")
            home = Path(folder, f"{plant.script}-{plant.like}{number if plant.meant else ''}")
            healthy = _run(home, plant.script, _edited(plant, plant.meant), *_healthy(plant), file)
            text = _edited(plant, (*plant.meant, *plant.edits))
            trace = _run(Path(folder, str(number)), plant.script, text, plant.ranks, plant.words, file)
            found = judged(trace, plant.like, healthy)
            if "OBS-16" in found:
                raise SystemExit(f"{plant.bug} in {plant.script}: planted so, it is no silent bug: {found['OBS-16']}")
            firsts = [found[each] for each in PAIRS if each in found][:1]
            firsts += [found[each] for each in sorted(found, key="diff".__eq__) if each not in PAIRS][:1]
            named = next((each for each in firsts if re.search(plant.guilty, each.split("; ")[0])), "")
            rows.append((plant, found, bool(named)))
            said = (named or next(iter(firsts), "")).split("; ")[0].replace("|", "/")
            print(f"| {plant.bug} | {plant.script} | {', '.join(found) or 'not seen'} | {'yes' if named else 'no'} "  # noqa: T201
                  f"| {said[:150]} |", flush=True)  # fmt: skip
    seen, right = sum(bool(each) for _, each, _ in rows), sum(named for *_, named in rows)
    alone = sum(each.keys() == {"diff"} for _, each, _ in rows)
    parts = f"{len(rows)} planted: {seen} seen ({seen / len(rows):.0%}), {alone} of them by `diff` alone, "
    parts += f"{right} named first ({right / len(rows):.0%})"
    print(f"\n{parts}" + "".join(f"; {each} is not installed" for each in sorted(away)))  # noqa: T201
    return int(seen < 0.9 * len(rows) or right < 0.8 * len(rows))


if __name__ == "__main__":
    sys.exit(main())

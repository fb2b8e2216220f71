"""Would this gate name a fault in code that nobody here wrote? Lines of released packages, changed and judged.

    python -m benchmarks.forks [FAULT …]

forks.toml has the faults. Each is one commit on a copy of the installed release, in a repository of its own, which
`check --at` judges with the stack's declared deviations: by the contracts that name the fault, or by those that one
would expect to. It is *named* if one of these is violated, *broken* if one only breaks, *green* if they hold, and else
*not asked*. The exit code is 1 if a fault is not judged as the list says, or if a release no longer has the line. A
release that is not installed (`make megatron MEGATRON=0.19.2`) is said, and its faults are left out.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.history import LONGEST_S, _git
from contracts.harness.checkout import PACKAGES

HERE = Path(__file__)
ROOT = HERE.parents[1]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A line of a release, what stands there instead, and what is asked.

    Args:
        first: how it was judged when it was drawn, before anything was closed: `named`, `green`, or `no fault`, if it
            changes no answer that can be asked or was planted wrong.
        now: how the gate judges it today, and `why`, if it is not named.
    """

    id: str
    stack: str
    file: str
    old: str
    new: str
    ask: str
    first: str
    ranks: int = 1
    now: str = "named"
    why: str = ""

    @property
    def package(self) -> str:
        """The stack whose release it changes."""
        return self.stack.partition("-")[0]


def released(python: Path, package: str, folder: Path) -> Path:
    """A repository with the installed release of a package as its first commit."""
    code = "import importlib.util as i, sys; print(i.find_spec(sys.argv[1]).submodule_search_locations[0])"
    told = subprocess.run([python, "-c", code, package.replace("/", ".")], capture_output=True, text=True, check=True)
    shutil.copytree(told.stdout.strip(), folder / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    _git(folder, "init", "-q")
    _committed(folder, "release")
    _git(folder, "tag", "release")
    return folder


def planted(fault: Fault, repo: Path) -> str:
    """The commit of a fault on top of the release.

    Raises:
        ValueError: where the release no longer has the line.
    """
    _git(repo, "checkout", "-qf", "release")
    text = (repo / fault.file).read_text(encoding="utf-8")
    if fault.old not in text:
        raise ValueError(f"{fault.id}: {fault.file} no longer has {fault.old!r}")
    (repo / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    return _committed(repo, fault.id)


def _committed(repo: Path, words: str) -> str:
    _git(repo, "add", "-A", "-f")
    _git(repo, "-c", "user.name=forks", "-c", "user.email=forks@localhost", "commit", "-qm", words)
    return _git(repo, "rev-parse", "HEAD").strip()


def judged(fault: Fault, at: str, python: Path, out: Path) -> tuple[str, str]:
    """How the gate judges a fault, and its first words about it."""
    words = (python, "-P", "-m", "rankproof", "check", "--stack", fault.stack, "--at", at, "--profile", fault.ask,
             "--json", "--deviations", ROOT / f"docs/deviations/{fault.package}.toml", "--report", out / fault.id,
             *(("--ranks", str(fault.ranks)) if fault.ranks > 1 else ()))  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    nothing = {"results": (), "headline": done.stderr.strip()[-200:]}
    told = json.loads(done.stdout) if done.stdout.startswith("{") else nothing
    for fate, outcome in (("named", "violated"), ("broken", "broken")):
        for each in told["results"]:
            if each["outcome"] == outcome:
                return fate, f"{each['id']}[{each['case']}]: {' '.join(each['words'].split())[:240]}"
    held = sum(each["outcome"] in ("holds", "deviates") for each in told["results"])
    return ("green" if held else "not asked"), told["headline"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", help="only these, by id or its beginning")
    parser.add_argument("--out", type=Path, default=Path("reports/forks"))
    given = parser.parse_args()
    read = tomllib.loads(HERE.with_suffix(".toml").read_text(encoding="utf-8"))
    faults = [Fault(**each) for each in read["fault"]]
    fates: Counter[str] = Counter()
    repos: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:
        for fault in (each for each in faults if each.id.startswith(tuple(given.faults) or "")):
            python = ROOT / f".venv-{fault.package}-{read['release'][fault.package]}/bin/python"
            if not python.exists():
                fates["left out"] += 1
                continue
            if fault.package not in repos:
                repos[fault.package] = Path(folder, fault.package)
                repos[fault.package].mkdir()
                released(python, PACKAGES[fault.package], repos[fault.package])
            repo = repos[fault.package]
            fate, first = judged(fault, f"{repo}@{planted(fault, repo)}", python, given.out)
            fates[fate if fate == fault.now else f"{fate} and not {fault.now}"] += 1
            print(f"{fate:<9} {fault.id}\n  {first}", flush=True)  # noqa: T201
    print(", ".join(f"{count} {fate}" for fate, count in fates.most_common()))  # noqa: T201
    sys.exit(any(" not " in fate for fate in fates))


if __name__ == "__main__":
    main()

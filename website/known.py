"""What is known of released packages: the first tables of their pages, and what `docs/deviations/` declares."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from contracts.court.deviations import load

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "megatron": ("Megatron-Core", ("0.16.1", "0.17.1", "0.18.1", "0.19.2")),
    "torchtitan": ("torchtitan", ("0.2.2", "0.3.0")),
    "transformers": ("transformers", ("4.57.6", "5.10.4", "5.23.0")),
}
"""Page → name, and the versions that were tried, oldest first."""
ROW = re.compile(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|([^|]*)\| \[\w+\]\(confirmed/(\w+)\.py\)([^|]*) \|$", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One row: something that a user of a package should know."""

    package: str
    script: str
    versions: tuple[str, ...]
    what: str
    remedy: str
    contracts: tuple[str, ...]
    upstream: str  # links, as Markdown


def bugs(package: str) -> tuple[Bug, ...]:
    """The rows of a package's page, in its order."""
    text = (ROOT / f"docs/{package}.md").read_text(encoding="utf-8").partition("## How it is asked")[0]
    return tuple(
        Bug(package=package, script=script, versions=_versions(package, versions), what=what, remedy=remedy,
            contracts=tuple(ids.split()), upstream=links.strip(", "))
        for versions, what, remedy, ids, script, links in ROW.findall(text)
    )  # fmt: skip


def declared(package: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Script, contract, version, and file and case of each deviation, once for each version that was tried."""
    for file in sorted((ROOT / "docs/deviations").glob(f"{package}*.toml")):
        for each in load(file):
            script = Path(each.issue.split(", ")[0]).stem
            for version in PACKAGES[package][1]:
                if not each.versions or any(fnmatchcase(version, one) for one in each.versions):
                    yield script, each.id, version, file.stem, each.case


def _versions(package: str, words: str) -> tuple[str, ...]:
    tried = PACKAGES[package][1]
    bound = words.rsplit(" ", maxsplit=1)[-1]
    if words == "all":
        return tried
    at = tried.index(bound)
    return {"≤": tried[: at + 1], "≥": tried[at:]}.get(words[0], (bound,))

"""Frozen sets of contracts: what the law was at a release, by id, case, rung and statement.

A file per release stands in `contracts/law/releases/`: the first has every contract on a line, the others have only
what changed since the release before. It is written, with the changes in words in its CHANGELOG.md, by

    python -m contracts.harness.law_release 2026.11
    python -m contracts.harness.law_release --check     # whether the latest one is the law of today

and it is never edited: it holds the digest of the whole set. A verdict about a release counts what stands in it.
Contracts that were added later are judged and listed; those that a release has and the law no longer has are listed as
well.
"""

import difflib
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.contract import Law
from contracts.spec import Refusals, codec, refuse
from contracts.spec.records import Item, Plan

FOLDER = Path(__file__).parents[1] / "law" / "releases"
CHANGELOG = "CHANGELOG.md"
_NAME = re.compile(r"20\d\d\.(0[1-9]|1[0-2])(\.[1-9]\d*)?")


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A contract as a release has it. `cases` are those that were written and their rungs; empty without a check."""

    tier: str
    statement: str
    cases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Release:
    """A frozen set. `digest` is the SHA-256 of its contracts as JSON."""

    name: str
    digest: str
    contracts: Mapping[str, Frozen]

    @property
    def items(self) -> frozenset[str]:
        return frozenset(
            str(Item(id=id, case=case)) for id, each in self.contracts.items() for case in each.cases or ("",)
        )


@dataclass(frozen=True, kw_only=True)
class _Written:
    """A release as its file has it: the contracts that the release before (`since`) lacks or has otherwise, and the ids
    that are gone."""

    name: str
    digest: str
    since: str | None
    removed: tuple[str, ...]
    contracts: Mapping[str, Frozen]

    @property
    def text(self) -> str:
        """Its JSON, a contract on a line."""
        body = codec.encode(self)
        rows = [
            f"{json.dumps(id)}: {json.dumps(each, ensure_ascii=False)}" for id, each in body.pop("contracts").items()
        ]
        head = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items())
        return f'{{\n{head},\n"contracts": {{\n' + ",\n".join(rows) + "\n}\n}\n"


def names(folder: Path = FOLDER) -> list[str]:
    """The releases that there are, oldest first."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load(name: str, folder: Path = FOLDER) -> Release:
    """A release by its name.

    Raises:
        Refused: for a name that there is not, and for a file that was edited.
    """
    known = names(folder)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise refuse("law", name, "is not a release", f"use one of {', '.join(known)}" if near else "none is frozen")
    written = codec.loads(_Written, (folder / f"{name}.json").read_text(encoding="utf-8"), name=f"{name}.json")
    found = Refusals()
    earlier = written.since is None or written.since in known[: known.index(name)]
    found.unless(earlier, f"{name}.since", written.since, "is no earlier release", "take it from the tag again")
    found.raise_any()
    before = {} if written.since is None else load(written.since, folder).contracts
    whole = {**before, **written.contracts}
    contracts = {id: whole[id] for id in sorted(whole) if id not in written.removed}
    release = Release(name=written.name, digest=written.digest, contracts=contracts)
    found.unless(release.digest == _digest(release.contracts), f"{name}.digest", release.digest,
                 "belongs to other contracts", "a release is never edited: take it from the tag again")  # fmt: skip
    found.unless(release.name == name, f"{name}.name", release.name, "is not the file's", "do not rename a release")
    found.raise_any()
    return release


def frozen(law: Law, name: str) -> Release:
    """The law of today under a name."""
    contracts = {
        **{id: Frozen(tier=each.tier, statement=each.promise, cases=tuple(each.asked))
           for id, each in law.contracts.items()},
        **{id: Frozen(tier=each.tier, statement=each.promise, cases=()) for id, each in law.untested.items()},
    }  # fmt: skip
    ordered = {id: contracts[id] for id in sorted(contracts)}
    return Release(name=name, digest=_digest(ordered), contracts=ordered)


def pinned(law: Law, plan: Plan, release: Release) -> Plan:
    """A plan that counts what a release has of it."""
    today = {str(Item(id=id, case=case)) for id, each in law.contracts.items() for case in each.asked}
    today |= {*law.untested}
    then = release.items
    checked = {id for id in law.untested if release.contracts.get(id) and release.contracts[id].cases}
    gone = [id for id in release.contracts if id not in {*law.ids()} or id in checked]
    cases = sorted(item for item in then - today if item.partition("[")[0] not in gone and "[" in item)
    return replace(
        plan,
        law=f"{release.name} ({release.digest[:12]})",
        added=tuple(str(item) for item in plan.items if str(item) not in then),
        gone=(*gone, *cases),
        reworded=tuple(
            id for id, said in plan.promises.items()
            if id in release.contracts and release.contracts[id].statement != said.promise
        ),
    )  # fmt: skip


def differences(before: Release | None, now: Release) -> list[str]:
    """What changed from one release to the next, in lines of Markdown."""
    number = sum(len(each.cases) for each in now.contracts.values())
    if before is None:
        return [f"The first frozen set: {len(now.contracts)} contracts, {number} cases with their leaner recipes."]
    old, new = before.contracts, now.contracts
    cases = {id: ({*new[id].cases} - {*old[id].cases}, {*old[id].cases} - {*new[id].cases}) for id in new if id in old}
    kinds = {
        "Added": [id for id in new if id not in old],
        "Removed": [id for id in old if id not in new],
        "Reworded": [id for id in new if id in old and new[id].statement != old[id].statement],
        "More cases": [f"{id} ({len(more)})" for id, (more, _) in cases.items() if more],
        "Fewer cases": [f"{id} ({', '.join(sorted(less))})" for id, (_, less) in cases.items() if less],
    }
    return [f"- {kind}: {', '.join(ids)}" for kind, ids in kinds.items() if ids] or ["Nothing changed."]


def latest(law: Law, folder: Path = FOLDER) -> Release:
    """The latest release, which is the law of today.

    Raises:
        Refused: where something was added, removed or reworded since, or nothing is frozen.
    """
    known = names(folder)
    if not known:
        raise refuse("law", "", "is not frozen", "python -m contracts.harness.law_release YEAR.MONTH")
    found, today = load(known[-1], folder), frozen(law, known[-1])
    if found.digest != today.digest:
        told = " ".join(differences(found, today))
        raise refuse("law", found.name, f"is not the law of today: {told}", "freeze it under a new name")
    return found


def freeze(law: Law, name: str, folder: Path = FOLDER) -> Release:
    """Write the law of today as a release, and what changed since the one before.

    Raises:
        Refused: for a name that is no release's, that there is already, or that is older than another.
    """
    known = names(folder)
    if not _NAME.fullmatch(name):
        raise refuse("law", name, "is not a year and a month", "write 2026.11, or 2026.11.1 for a second one")
    if known and name <= known[-1]:
        raise refuse("law", name, f"is not later than {known[-1]}", "a release is never written again")
    release = frozen(law, name)
    folder.mkdir(exist_ok=True)
    before = load(known[-1], folder) if known else None
    lines = differences(before, release)
    (folder / f"{name}.json").write_text(_changes(before, release).text, encoding="utf-8")
    log = folder / CHANGELOG
    title, _, rest = (log.read_text(encoding="utf-8") if log.exists() else "# Releases of the law\n").partition("\n")
    log.write_text("\n".join([title, "", f"## {name}", "", *lines, rest.rstrip("\n")]).rstrip("\n") + "\n",
                   encoding="utf-8")  # fmt: skip
    return release


def _changes(before: Release | None, release: Release) -> _Written:
    old = {} if before is None else before.contracts
    return _Written(
        name=release.name, digest=release.digest, since=None if before is None else before.name,
        removed=tuple(id for id in old if id not in release.contracts),
        contracts={id: each for id, each in release.contracts.items() if old.get(id) != each},
    )  # fmt: skip


def _digest(contracts: Mapping[str, Frozen]) -> str:
    return hashlib.sha256(json.dumps(codec.encode(dict(contracts)), sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    from contracts.contract import LAW
    from contracts.harness.commands._errors import told
    from contracts.harness.families import read_checks

    def work() -> None:
        if len(sys.argv) != 2:
            raise SystemExit("usage: python -m contracts.harness.law_release YEAR.MONTH | --check")
        read_checks()
        if sys.argv[1] == "--check":
            latest(LAW)
            return
        release = freeze(LAW, sys.argv[1])
        sys.stdout.write(f"{FOLDER / release.name}.json: {len(release.contracts)} contracts, {release.digest}\n")

    sys.exit(told(work))

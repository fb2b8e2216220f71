"""The figure: what of all that was planted was detected, by tier, family, catalogued bug and operator, and how soon.

It is drawn from what self-tests left behind: kill matrices, the journal of changes by operators, and that of correct
stacks. It says nothing of what it was not given.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from contracts.court.badge import svg
from contracts.harness import kill_matrix
from contracts.harness.loss_curves import AGREES
from contracts.harness.operators.reach import content
from contracts.harness.operators.trials import FATES, JOURNAL, Trial, rows
from contracts.spec import codec, refuse
from contracts.spec.records import Kill

FALSE_ALARMS = "false_alarms.jsonl"
FILE = "detection"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Alarms:
    """A row of the journal of correct stacks (`benchmarks/false_alarms.py`): one of them, and what is red of it."""

    content: str
    seed: int
    cases: int
    held: int
    judged: int
    red: tuple[Mapping[str, str | int], ...]
    stack: str


@dataclass(frozen=True, kw_only=True)
class Detected:
    """How many of how many, and the median of the seconds until it was said; 0 where nothing was."""

    detected: int
    planted: int
    median_s: float = 0.0

    def __str__(self) -> str:
        share = f" ({100 * self.detected / self.planted:.0f} %)" if self.planted else ""
        return f"{self.detected} of {self.planted}{share}"


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The figure. `trained` are the detected mutants whose training was compared; of these `loss` and `both` count
    those that the loss by itself, and loss and gradient norm together, do not show. `operators` counts fates.

    `stacks` correct stacks were judged on `cases` cases, of which `red` were red.
    """

    tiers: Mapping[str, Detected] = field(default_factory=dict)
    families: Mapping[str, Detected] = field(default_factory=dict)
    entries: Mapping[str, Detected] = field(default_factory=dict)
    trained: int = 0
    loss: int = 0
    both: int = 0
    operators: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    noticed: Detected = field(default_factory=lambda: Detected(detected=0, planted=0))
    stacks: int = 0
    cases: int = 0
    red: int = 0


def detection(folders: Iterable[Path], *, current: bool = False) -> Detection:
    """The figure of what lies in some folders: `kills.json`, `operators.jsonl`, `false_alarms.jsonl`; where it is to be
    `current`, of the journals only what is of this source.

    Raises:
        Refused: for a folder that has none of them, a kill matrix of other files than these, or rows of another schema.
    """
    tiers: dict[str, tuple[Kill, ...]] = {}
    trials: dict[str, Trial] = {}
    alarms: dict[int, Alarms] = {}
    for folder in folders:
        if not any((folder / name).exists() for name in (kill_matrix.FILE, JOURNAL, FALSE_ALARMS)):
            raise refuse("folder", str(folder), "has no kill matrix and no journal", "name what `selftest` wrote to")
        if (folder / kill_matrix.FILE).exists():
            proof = kill_matrix.load(folder)
            tiers[proof.about.tier] = proof.matrix.kills
        trials |= {row.change: row for row in _latest(folder / JOURNAL, Trial, current)}
        alarms |= {row.seed: row for row in _latest(folder / FALSE_ALARMS, Alarms, current)}
    return drawn_from(tiers, list(trials.values()), list(alarms.values()))


def _latest(file: Path, kind: type[T], current: bool) -> list[T]:
    """The rows of a journal that are of the same source as its last one, and of the one that is here where that is to
    be so. The key of false alarms begins with the source that is judged.
    """
    found = [*rows(file)]
    here = content() if current and found else ""
    ours = [row for row in found if row.get("content") == found[-1].get("content")]
    return [codec.decode(kind, row, name=file.name) for row in ours if str(row.get("content")).startswith(here)]


def drawn_from(tiers: Mapping[str, Sequence[Kill]], trials: Sequence[Trial], alarms: Sequence[Alarms]) -> Detection:
    """The figure, from kills by tier, changes by operators and rows of the journal of correct stacks."""
    tried = [kill for kills in tiers.values() for kill in kills if kill.fate != "void"]
    trained = [kill for kill in tried if kill.fate == "killed" and kill.loss]
    unseen = [kill for kill in trained if kill.loss == AGREES]
    fates = {name: [each.fate for each in trials if each.change.startswith(f"{name}@")] for name in _operators(trials)}
    live = [each for each in trials if each.fate in ("killed", "crashed", "survived")]
    return Detection(
        tiers={tier: _of(kill for kill in kills if kill.fate != "void") for tier, kills in tiers.items()},
        families={name: _of(kill for kill in tried if kill.of.partition("-")[0] == name)
                  for name in dict.fromkeys(kill.of.partition("-")[0] for kill in tried)},
        entries={name: _of(kill for kill in tried if name in kill.bugs)
                 for name in sorted({bug for kill in tried for bug in kill.bugs})},
        trained=len(trained), loss=len(unseen), both=sum(kill.norm == AGREES for kill in unseen),
        operators={name: {fate: of.count(fate) for fate in FATES} for name, of in fates.items()},
        noticed=Detected(
            detected=sum(each.fate != "survived" for each in live), planted=len(live),
            median_s=_median(each.seconds for each in live if each.fate == "killed"),
        ),
        stacks=len(alarms), cases=sum(row.judged for row in alarms), red=sum(len(row.red) for row in alarms),
    )  # fmt: skip


def _operators(trials: Sequence[Trial]) -> list[str]:
    return sorted({each.change.partition("@")[0] for each in trials})


def _of(kills: Iterable[Kill]) -> Detected:
    every = list(kills)
    killed = [kill for kill in every if kill.fate == "killed"]
    return Detected(detected=len(killed), planted=len(every), median_s=_median(kill.seconds for kill in killed))


def _median(seconds: Iterable[float]) -> float:
    found = [each for each in seconds if each > 0]
    return round(statistics.median(found), 3) if found else 0.0


def badge(found: Detection) -> dict[str, Any]:
    """The figure as a badge, in the form that shields.io reads from an address (its endpoint badge).

    The least share sets its colour: mutants, which their authors saw killed, are many and make up for nothing.
    """
    every = [*found.tiers.values(), *([found.noticed] if found.noticed.planted else [])]
    detected, planted = sum(each.detected for each in every), sum(each.planted for each in every)
    alarms = f", {found.red} false alarms" if found.stacks else ""
    least = min((each.detected / each.planted for each in every if each.planted), default=0.0)
    colour = "red" if found.red or least < 0.8 else "brightgreen" if least >= 0.95 else "yellow"
    words = f"{detected} of {planted}{alarms}" if planted else "nothing was planted"
    return {"schemaVersion": 1, "label": "planted bugs noticed", "message": words, "color": colour}


def picture(found: Detection) -> str:
    """The badge as SVG."""
    told = badge(found)
    return svg(told["label"], told["message"], told["color"])


def write(folder: Path, found: Detection) -> None:
    """`detection.md`, `detection.json`, and the badge: `badge.svg`, and `badge.json` for shields.io."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{FILE}.md").write_text(markdown(found), encoding="utf-8")
    (folder / f"{FILE}.json").write_text(codec.laid_out(asdict(found)) + "\n", encoding="utf-8")
    (folder / "badge.svg").write_text(picture(found), encoding="utf-8")
    (folder / "badge.json").write_text(json.dumps(badge(found)) + "\n", encoding="utf-8")


def markdown(found: Detection) -> str:
    """The figure as Markdown: a sentence for each kind of thing planted, then the tables."""
    lines = ["# Detection", "", *summary(found)]
    for title, of in (("tier", found.tiers), ("family", found.families), ("catalogued bug", found.entries)):
        if of:
            lines += ["", f"| {title} | detected | median time |", "|---|---|---|"]
            lines += [f"| {name} | {each} | {_seconds(each)} |" for name, each in of.items()]
    if found.operators:
        lines += ["", f"| operator | {' | '.join(FATES)} |", f"|---|{'---|' * len(FATES)}"]
        lines += [f"| {name} | {' | '.join(str(of[fate]) for fate in FATES)} |" for name, of in found.operators.items()]
    return "\n".join(lines) + "\n"


def summary(found: Detection) -> list[str]:
    """The figure in sentences, one a line of a list; what was not given is not said."""
    lines = []
    if found.tiers:
        every = Detected(
            detected=sum(each.detected for each in found.tiers.values()),
            planted=sum(each.planted for each in found.tiers.values()),
        )
        told = "; ".join(f"{tier}: {each}{_within(each)}" for tier, each in found.tiers.items())
        lines.append(f"- Bugs planted by hand: {every} are caught in the words that their author declared ({told}).")
    if found.trained:
        lines.append(
            f"- For {found.trained} of these a broken run was compared with a right one: {found.loss} leave the loss "
            f"where it was, {found.both} the loss and the gradient norm."
        )
    if found.noticed.planted:
        crashed = sum(of["crashed"] for of in found.operators.values())
        lines.append(
            f"- Changes drawn over the reference's source: {found.noticed} of those that were put before cases "
            f"are noticed, {crashed} of them by an error{_within(found.noticed)}."
        )
    if found.stacks:
        lines.append(f"- False alarms: {found.red} in {found.cases} cases of {found.stacks} correct stacks.")
    return lines


def _within(each: Detected) -> str:
    return f", half of them within {_seconds(each)}" if each.median_s else ""


def _seconds(each: Detected) -> str:
    return f"{each.median_s:.3g} s" if each.median_s else "–"


def shown(found: Detection, *, date: str) -> str:
    """What README shows: the sentences and their date."""
    return "\n".join(["", *summary(found), "", f"Measured on {date}.", ""])

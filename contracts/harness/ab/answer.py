"""What came out, as text, as Markdown for one comment on a pull request, and as JSON."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contracts.court.plain_text import markdown
from contracts.court.wording import headline
from contracts.harness.ab.sides import Sides
from contracts.harness.ab.trial import JUDGED, Found, ignored
from contracts.observe import diff
from contracts.observe.diff import Comparison
from contracts.observe.source import Place
from contracts.spec.records import EXIT_CODES, USAGE_ERROR

Word = Literal["equal", "different", "not comparable", "incomplete"]
CODES: Mapping[Word, int] = {
    "equal": 0, "different": 1, "not comparable": EXIT_CODES["incomplete"], "incomplete": EXIT_CODES["incomplete"],
}  # fmt: skip
SKIP, END = 125, 255
"""What `git bisect run` takes for a commit that cannot be tested, and for a reason to end."""
_PLACES = 4
_FINDINGS = 10


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came out, for a reader.

    Args:
        kind: commits, environments or layouts.
        folder: where the traces lie.
    """

    kind: str
    sides: Sides
    found: Found
    folder: Path

    @property
    def word(self) -> Word:
        compared = self.found.comparison
        if compared is None or self.found.problems:
            return "incomplete"
        if compared.differences or self.found.new:
            return "different"
        return "not comparable" if compared.incomparable else "equal"

    @property
    def exit_code(self) -> int:
        """0 equal, 1 different, 3 neither."""
        return CODES[self.word]

    @property
    def without_base(self) -> bool:
        """Whether the base could not be observed, so that no other commit can be compared with it."""
        return any(each.startswith(f"{self.sides.base.name}: ") for each in self.found.problems)

    @property
    def reports(self) -> dict[str, str]:
        """The folder of each side's report, in `folder`."""
        names = [each.name for each in (self.sides.base, self.sides.head)]
        return {name: each for name, each in zip(names, JUDGED, strict=True) if (self.folder / each).is_dir()}

    @property
    def place(self) -> Place | None:
        """The line to look at first."""
        return next(iter(self.found.places), None)

    @property
    def headline(self) -> str:
        names = f"{self.sides.head.name} from {self.sides.base.name}"
        compared, where = self.found.comparison, f"; see {self.place.file}:{self.place.line}" if self.place else ""
        if compared is None or self.found.problems:
            return f"INCOMPLETE: {'; '.join(' '.join(each.split())[:200] for each in self.found.problems)}"
        if compared.differences:
            return f"DIFFERENT: {names}, first in {compared.differences[0]}{where}"
        if self.found.new:
            return f"DIFFERENT: {self.sides.head.name} violates {self.found.new[0]}{where}"
        if compared.incomparable:
            return f"NOT COMPARABLE: {names}: {compared.incomparable}{where}"
        said = f"{self.sides.head.name} does what {self.sides.base.name} does"
        return f"EQUAL: {said}; {diff.counted(compared)}"


def of_bisect(code: int) -> int:
    """The exit code for `git bisect run`, which takes any from 1 to 127 but 125 for a bad commit."""
    if code in (0, 1) or code > 127:
        return code
    return END if code == USAGE_ERROR else SKIP


def lines(answer: Answer) -> Iterator[str]:
    """The answer in lines; the last one says it."""
    found, sides = answer.found, answer.sides
    width = max(len(sides.base.name), len(sides.head.name), 8)
    for side in (sides.base, sides.head):
        yield f"{side.name:{width}}  {side.label} (torch {side.python['torch']}, Python {side.python['python']})"
    if found.weights:
        yield f"{'weights':{width}}  {found.weights}"
    for each in found.problems:
        yield each
    if found.problems and (lacks := ignored(sides)):
        yield lacks
    for title, compared in (("", found.comparison), ("from the base's weights", found.rest)):
        if compared is not None:
            yield from _compared(compared, title)
    for name, _, verdict in found.verdicts:
        yield f"{'judged':{width}}  {name}: {headline(verdict)}"
    for each in found.new[:_FINDINGS]:
        yield f"{'new':{width}}  {each}"
    for place in found.places[:_PLACES]:
        yield f"{'at':{width}}  {place}"
    if len(found.places) > _PLACES:
        yield f"{'':{width}}  and {len(found.places) - _PLACES} more changed places"
    yield f"{'report':{width}}  {answer.folder}/ab.html"
    yield answer.headline


def compared_lines(compared: Comparison) -> list[str]:
    return [*diff.lines(compared, ("the base", "the head"))]


def _compared(compared: Comparison, title: str) -> list[str]:
    *told, last = compared_lines(compared)
    return [title, *(each for each in told if each.startswith("differs")), last] if title else told


def as_fields(answer: Answer) -> dict[str, object]:
    """The answer for JSON."""
    found, sides = answer.found, answer.sides
    return {
        "schema": "rankproof.ab/1", "word": answer.word, "exit_code": answer.exit_code, "headline": answer.headline,
        "kind": answer.kind,
        "sides": [{"name": each.name, "label": each.label, "revision": each.revision, "command": [*each.words],
                   "torch": each.python["torch"], "python": each.python["python"]}
                  for each in (sides.base, sides.head)],
        "problems": [*found.problems], "weights": found.weights,
        "comparison": found.comparison and diff.as_fields(found.comparison),
        "from_the_weights_of_the_base": found.rest and diff.as_fields(found.rest),
        "places": [vars(each) for each in found.places],
        "judged": {name: {"word": verdict.word, "headline": headline(verdict)} for name, _, verdict in found.verdicts},
        "new": [*found.new],
    }  # fmt: skip


def as_json(answer: Answer) -> str:
    return json.dumps(as_fields(answer), indent=2, ensure_ascii=False) + "\n"


def comment(answer: Answer) -> str:
    """The answer as one comment: its first line is the same for every run of a command, so that whoever posts it finds
    the comment of the run before and writes over it."""
    found, sides = answer.found, answer.sides
    words = shlex.join(sides.head.words)
    mark = hashlib.sha256(f"ab {answer.kind} {words}".encode()).hexdigest()[:16]
    told = [f"<!-- rankproof {mark} -->", f"### {markdown(answer.headline)}", "", "| | | torch |", "|---|---|---|"]
    told += [f"| {each.name} | {markdown(each.label).replace('|', chr(92) + '|')} | {each.python['torch']} |"
             for each in (sides.base, sides.head)]  # fmt: skip
    told += ["", f"`{words}`" if "`" not in words else markdown(words), ""]
    if found.weights:
        told += [f"**Weights**: {markdown(found.weights)}", ""]
    told += [f"- {markdown(each[:1000])}" for each in found.problems]
    for title, compared in (("Compared", found.comparison), ("From the base's weights", found.rest)):
        if compared is not None:
            told += [f"<details><summary>{title}</summary>", ""]
            told += [f"- {markdown(each)}" for each in compared_lines(compared)] + ["", "</details>", ""]
    told += [f"- new: {markdown(each[:1000])}" for each in found.new[:_FINDINGS]]
    told += [f"- at {markdown(str(each))}" for each in found.places[:_PLACES]]
    told += [f"- {name}: {markdown(headline(verdict))}" for name, _, verdict in found.verdicts]
    return "\n".join(told) + "\n"

"""A run as JSON lines: each line is one object with one key, in the order of events.

    {"header": …}  {"plan": …}  {"deviation": …}*  {"baseline": …}?  {"unfit": …}*  {"result": …}*  {"unclaimed": …}*
    {"kill": …}*  {"footer": …}

The plan is written before the first result. The footer holds the hash of all lines above it, so a file that was cut
off, joined from two or edited is refused.

The schema under `docs/schema/` is written by `python -m contracts.court.record docs/schema/run-1.json`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from contracts.court.verdict import verdict
from contracts.spec import codec, former_name
from contracts.spec.errors import Refusals, refuse
from contracts.spec.records import (
    SCHEMA,
    Baseline,
    Deviation,
    Footer,
    Header,
    Kill,
    Plan,
    Result,
    Run,
    Unclaimed,
    Unfit,
    Verdict,
)

KINDS: Mapping[str, type] = {
    "header": Header,
    "plan": Plan,
    "deviation": Deviation,
    "baseline": Baseline,
    "unfit": Unfit,
    "result": Result,
    "unclaimed": Unclaimed,
    "kill": Kill,
    "footer": Footer,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def line(entry: object) -> str:
    """One line of the record, without its newline."""
    return f'{{"{_NAMES[type(entry)]}":{codec.dumps(entry)}}}'


def digest(text: str) -> str:
    """SHA-256 of the lines of a record."""
    return hashlib.sha256(text.encode()).hexdigest()


def footer(above: str, results: int, judged: Verdict, finished: str) -> Footer:
    """The line that closes a run; `above` is the digest of the lines before it."""
    return Footer(digest=above, results=results, word=judged.word, exit_code=judged.exit_code, finished=finished)


def write(run: Run, today: datetime.date) -> str:
    """A whole run as text, with the verdict of a given day."""
    compared = [] if run.baseline is None else [run.baseline]
    before: list[object] = [run.header, run.plan, *run.deviations, *compared, *run.unfit]
    entries = [*before, *run.results, *run.unclaimed, *run.kills]
    text = "".join(f"{line(entry)}\n" for entry in entries)
    closing = footer(digest(text), len(run.results), verdict(run, today), run.header.started)
    return f"{text}{line(closing)}\n"


def read(text: str) -> tuple[Run, Footer]:
    """Read a run back.

    Raises:
        Refused: when it has no footer, when the lines do not match it, when a line is not of the schema, or when
            it was written by another schema version.
    """
    entries = [_read_line(each, number) for number, each in enumerate(text.split("\n"), start=1) if each]
    order = [_NAMES[type(entry)] for entry in entries]
    if order[-1:] != ["footer"]:
        raise refuse("run", order[-1] if order else "nothing", "ends without a footer: it was cut off", "run it again")
    if not text.endswith("\n"):
        raise refuse("run", text[-40:], "ends in the middle of a line: it was cut off", "run it again")
    if order[:2] != ["header", "plan"] or any(
        order.count(once) > 1 for once in ("header", "plan", "baseline", "footer")
    ):
        raise refuse("run", order[:3], "is not header, plan, results, footer", "do not join or edit records")
    compared = _only(entries, Baseline)
    run = Run(
        header=_only(entries, Header)[0],
        plan=_only(entries, Plan)[0],
        results=tuple(_only(entries, Result)),
        deviations=tuple(_only(entries, Deviation)),
        unclaimed=tuple(_only(entries, Unclaimed)),
        kills=tuple(_only(entries, Kill)),
        unfit=tuple(_only(entries, Unfit)),
        baseline=compared[0] if compared else None,
    )
    closing = _only(entries, Footer)[0]
    if closing.digest != digest(text[: text.rindex("\n", 0, -1) + 1]):
        raise refuse("run", closing.digest, "the footer belongs to other lines", "do not join or edit records")
    if closing.results != len(run.results):
        problem = f"the footer counts {closing.results} results, the record holds {len(run.results)}"
        raise refuse("run", closing.results, problem, "run it again")
    _dates(run, closing)
    return run, closing


def _dates(run: Run, closing: Footer) -> None:
    """Refuse text that is no date: the verdict depends on the dates."""
    found = Refusals()
    moments = [("header.started", run.header.started), ("footer.finished", closing.finished)]
    moments += [(f"deviation {each.id}.expires", each.expires) for each in run.deviations]
    for name, text in moments:
        try:
            datetime.datetime.fromisoformat(text)
        except ValueError:
            found.add(name, text, "is not a date", "do not edit records")
    found.raise_any()


def load(path: Path) -> tuple[Run, Footer]:
    """Read a run from a file, or from the report folder it stands in.

    Raises:
        Refused: also when the file cannot be read.
    """
    file = path / "run.jsonl" if path.is_dir() else path
    unfinished = file.with_name("run.jsonl.part")
    if path.is_dir() and unfinished.exists() and not file.exists():
        raise refuse(
            "run", str(path), "holds a run that did not finish", f"run it again; {unfinished} has what came in"
        )
    try:
        return read(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(
            "run", str(file), f"cannot be read: {error.strerror}", "give a report folder or its run.jsonl"
        ) from None
    except UnicodeDecodeError as error:
        raise refuse(
            "run", str(file), f"is not text: {error.reason}", "give a report folder or its run.jsonl"
        ) from None


def make_folder(folder: Path, renderings: Iterable[str] = ()) -> None:
    """Make a report folder, or empty it of an older run.

    Raises:
        Refused: when it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("run.jsonl", "run.jsonl.part", *renderings):
            (folder / name).unlink(missing_ok=True)
        (folder / "run.jsonl.part").touch()
        (folder / "run.jsonl.part").unlink()
    except OSError as error:
        raise refuse("report", str(folder), f"cannot be written: {error.strerror}", "give another folder") from None


class Recorder:
    """Writes a run while it happens; every line is on disk before the next test starts.

    The file is called `run.jsonl.part` until the footer is written, so a killed run never looks like a finished one.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.path = folder / "run.jsonl"
        self._part = folder / "run.jsonl.part"
        self._file: TextIO = self._part.open("w", encoding="utf-8")
        self._above = hashlib.sha256()
        self._results = 0

    def add(self, entry: object) -> None:
        text = f"{line(entry)}\n"
        self._file.write(text)
        self._file.flush()
        self._above.update(text.encode())
        self._results += isinstance(entry, Result)

    def close(self, judged: Verdict, finished: str) -> None:
        """Write the footer and give the file its name."""
        self.add(footer(self._above.hexdigest(), self._results, judged, finished))
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self.path)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def schema() -> dict[str, Any]:
    """The JSON Schema of one line of the record."""
    definitions: dict[str, Any] = {}
    choices = []
    for name, kind in KINDS.items():
        described = codec.schema(kind)
        definitions |= described["$defs"]
        choices.append(
            {"type": "object", "properties": {name: {"$ref": described["$ref"]}}, "required": [name],
             "additionalProperties": False}
        )  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of a {SCHEMA} record",
        "oneOf": choices,
        "$defs": definitions,
    }


def schema_text() -> str:
    """The schema as the checked-in file holds it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _read_line(text: str, number: int) -> Any:
    name = f"line {number}"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise refuse(name, text[:60], "is not JSON", "the record is damaged; run it again") from None
    if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in KINDS:
        raise refuse(name, text[:60], f"is none of {', '.join(KINDS)}", "give a record of this gate")
    kind = next(iter(data))
    version = SCHEMA
    if kind == "header" and isinstance(data[kind], dict):
        version = data[kind]["schema"] = former_name.current(data[kind].get("schema"))
    if version != SCHEMA:
        raise refuse(name, version, f"is another schema than {SCHEMA}", "read it with the version that wrote it")
    return codec.decode(KINDS[kind], data[kind], name=f"{name}.{kind}")


def _only(entries: Iterable[Any], kind: type) -> list[Any]:
    return [entry for entry in entries if type(entry) is kind]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m contracts.court.record FILE")
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")

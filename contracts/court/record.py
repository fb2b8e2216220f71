"""A run as JSON lines: each line is one object with one key, in the order of events.

    {"header": …}  {"plan": …}  {"deviation": …}*  {"baseline": …}?  {"unfit": …}*  {"result": …}*  {"unclaimed": …}*
    {"kill": …}*  {"footer": …}

The plan is written before the first result. The footer holds the hash of all lines above it, so a file that was cut
off, joined from two or edited is refused.

The schema under `docs/schema/` is written by `python -m contracts.court.record docs/schema/run-1.json`.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from contracts.court import heartbeat
from contracts.court.plain_text import fit
from contracts.court.verdict import verdict
from contracts.spec import Refusals, codec, former_name, refuse
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
from contracts.spec.redaction import secrets_here

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


def line(entry: object, known: frozenset[str] = frozenset()) -> str:
    """One line of the record, without its newline, and without secrets; `known` are redacted wherever they stand."""
    return f'{{"{_NAMES[type(entry)]}":{codec.dumps(fit(entry, known))}}}'


def digest(text: str) -> str:
    """SHA-256 of the lines of a record, also of one that was edited so that it is no UTF-8."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


KEY_FILE = "RANKPROOF_RECORD_KEY_FILE"
"""The variable that names a file whose bytes sign records. If it is set, a record is read only if they signed it."""


def key() -> bytes:
    """The key that signs records here; empty where there is none.

    Raises:
        Refused: when its file cannot be read, or holds fewer than 16 bytes.
    """
    file = os.environ.get(KEY_FILE)
    if not file:
        return b""
    try:
        found = Path(file).read_bytes().strip()
    except OSError as error:
        raise refuse(
            KEY_FILE, file, f"cannot be read: {error.strerror}", "name a file with the key, or unset it"
        ) from None
    if len(found) < SHORTEST_KEY:
        raise refuse(KEY_FILE, file, f"holds {len(found)} bytes", f"put {SHORTEST_KEY} random bytes or more into it")
    return found


SHORTEST_KEY = 16


def sealed(closing: Footer, above: str, key: bytes = b"") -> Footer:
    """A footer with its digest, and its signature where there is a key; `above` is the digest of the lines above."""
    blank = replace(closing, digest=above, signature="")
    text = codec.dumps(blank)
    signature = hmac.new(key, text.encode(), "sha256").hexdigest() if key else ""
    return replace(blank, digest=digest(text), signature=signature)


def footer(above: str, results: int, judged: Verdict, finished: str, key: bytes = b"") -> Footer:
    """The line that closes a run; `above` is the digest of the lines before it."""
    closing = Footer(digest="", results=results, word=judged.word, exit_code=judged.exit_code, finished=finished)
    return sealed(closing, above, key)


def sealed_anew(text: str) -> str:
    """A record whose last line is a footer, with the digest that it should have. Only a key shows the edit."""
    above, newline, closing = text.rstrip("\n").rpartition("\n")
    entry = _read_line(closing, 0)
    return f"{above}{newline}{line(sealed(entry, digest(above + newline)))}\n" if isinstance(entry, Footer) else text


def write(run: Run, today: datetime.date) -> str:
    """A whole run as text, with the verdict of a given day."""
    known = secrets_here(os.environ, sys.argv)
    compared = [] if run.baseline is None else [run.baseline]
    before: list[object] = [run.header, run.plan, *run.deviations, *compared, *run.unfit]
    entries = [*before, *run.results, *run.unclaimed, *run.kills]
    text = "".join(f"{line(entry, known)}\n" for entry in entries)
    closing = footer(digest(text), len(run.results), verdict(run, today), run.header.started, key())
    return f"{text}{line(closing)}\n"


def read(text: str) -> tuple[Run, Footer]:
    """Read a run back.

    Raises:
        Refused: when it has no footer, when the lines do not match it, when a line is not of the schema, or when
            it was written by another schema version.
    """
    entries = _entries(text)
    order = [_NAMES[type(entry)] for entry in entries]
    if order[-1:] != ["footer"]:
        raise refuse("run", order[-1] if order else "nothing", "ends without a footer: it was cut off", "run it again")
    if not text.endswith("\n"):
        raise refuse("run", text[-40:], "ends in the middle of a line: it was cut off", "run it again")
    run = _assembled(entries)
    closing = _only(entries, Footer)[0]
    above, secret = digest(text[: text.rindex("\n", 0, -1) + 1]), key()
    expected = sealed(closing, above, secret)
    if closing.digest != expected.digest:
        raise refuse("run", closing.digest, "the footer belongs to other lines", "do not join or edit records")
    if secret and not hmac.compare_digest(closing.signature, expected.signature):
        problem = "is not signed with the key of this machine" if closing.signature else "is not signed"
        raise refuse("run", closing.digest, problem, f"read it where it was written, or unset {KEY_FILE}")
    if closing.results != len(run.results):
        problem = f"the footer counts {closing.results} results, the record holds {len(run.results)}"
        raise refuse("run", closing.results, problem, "run it again")
    _dates(run, closing.finished)
    return run, closing


def read_part(text: str) -> Run:
    """Read what came in of a run that did not finish. Its last line may be a piece, which is left out.

    Raises:
        Refused: when a line is not of the schema, or header or plan is missing: nothing was judged then.
    """
    entries = _entries(text[: text.rfind("\n") + 1])
    if any(isinstance(entry, Footer) for entry in entries):
        raise refuse("run", "footer", "closes a run that is called unfinished", "call the file run.jsonl")
    run = replace(_assembled(entries), cut_off=True)
    _dates(run, run.header.started)
    return run


def _entries(text: str) -> list[Any]:
    return [_read_line(each, number) for number, each in enumerate(text.split("\n"), start=1) if each]


def _assembled(entries: list[Any]) -> Run:
    order = [_NAMES[type(entry)] for entry in entries]
    if order[:2] != ["header", "plan"] or any(
        order.count(once) > 1 for once in ("header", "plan", "baseline", "footer")
    ):
        raise refuse("run", order[:3], "is not header, plan, results, footer", "do not join or edit records")
    compared = _only(entries, Baseline)
    return Run(
        header=_only(entries, Header)[0],
        plan=_only(entries, Plan)[0],
        results=tuple(_only(entries, Result)),
        deviations=tuple(_only(entries, Deviation)),
        unclaimed=tuple(_only(entries, Unclaimed)),
        kills=tuple(_only(entries, Kill)),
        unfit=tuple(_only(entries, Unfit)),
        baseline=compared[0] if compared else None,
    )


def _dates(run: Run, finished: str) -> None:
    """Refuse text that is no date: the verdict depends on the dates."""
    found = Refusals()
    moments = [("header.started", run.header.started), ("footer.finished", finished)]
    moments += [(f"deviation {each.id}.expires", each.expires) for each in run.deviations]
    for name, text in moments:
        try:
            datetime.datetime.fromisoformat(text)
        except ValueError:
            found.add(name, text, "is not a date", "do not edit records")
    found.raise_any()


PART = "run.jsonl.part"
"""The name of a record until its footer is written."""


def unfinished(path: Path) -> Path | None:
    """The file of a run that did not finish, given by itself or by its folder; None for anything else."""
    if path.is_dir():
        return path / PART if (path / PART).exists() and not (path / "run.jsonl").exists() else None
    return path if path.name == PART else None


def absent(path: Path) -> str:
    """Why there is no record; empty where there is a file, whatever it holds."""
    try:
        (path / "run.jsonl" if path.is_dir() else path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "its run did not finish" if unfinished(path) else "there is no record"
    except OSError:
        pass  # `load` says why it cannot be read
    return ""


def load(path: Path) -> tuple[Run, Footer]:
    """Read a run from a file, or from the report folder it stands in.

    Raises:
        Refused: also when the file cannot be read.
    """
    if unfinished(path):
        remedy = f"run it again; `rankproof report {path}` shows what came in"
        raise refuse("run", str(path), "holds a run that did not finish", remedy)
    return read(_text(path / "run.jsonl" if path.is_dir() else path))


def load_any(path: Path) -> tuple[Run, Footer | None]:
    """The same, and also what came in of a run that did not finish, which has no footer.

    Raises:
        Refused: also where nothing came in but the beginning of a line.
    """
    part = unfinished(path)
    return load(path) if part is None else (read_part(_text(part)), None)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise refuse(
            "run", str(file), f"cannot be read: {error.strerror}", "give a report folder or its run.jsonl"
        ) from None
    except UnicodeDecodeError as error:
        raise refuse(
            "run", str(file), f"is not text: {error.reason}", "give a report folder or its run.jsonl"
        ) from None


LOG = "output.log"
"""The output of a run, also of one that ended before it had a record."""


def make_folder(folder: Path, renderings: Iterable[str] = ()) -> None:
    """Make a report folder, or empty it of an older run.

    Raises:
        Refused: when it cannot be made or written to, and where files of these names lie beside no record of ours.
    """
    if theirs := [name for name in ("run.jsonl", PART, *renderings) if (folder / name).exists() and not _ours(folder)]:
        problem = f"has {', '.join(theirs)}, which no run of rankproof left there"
        raise refuse("report", str(folder), problem, "give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("run.jsonl", PART, *renderings):
            (folder / name).unlink(missing_ok=True)
        (folder / PART).touch()
        (folder / PART).unlink()
    except OSError as error:
        raise refuse("report", str(folder), f"cannot be written: {error.strerror}", "give another folder") from None


WHOLE = ("run.jsonl", "kills.json")
"""What a run of `check` leaves, and one of `selftest`."""


def mark(folder: Path) -> None:
    """Leave the sign of a run beside a log whose run has no record yet, and may never have: an empty part."""
    if not any((folder / name).exists() for name in (PART, *WHOLE)):  # in this order: a part becomes a record
        (folder / PART).touch()


def unmark(folder: Path) -> None:
    """Take that sign away."""
    if (folder / PART).exists() and not (folder / PART).stat().st_size:
        (folder / PART).unlink()


def _ours(folder: Path) -> bool:
    """Whether a run of the suite wrote into a folder: by the first line of its record, or by its part."""
    first = b'{"header":'
    for name in ("run.jsonl", PART):
        with contextlib.suppress(OSError), (folder / name).open("rb") as file:
            begins = file.read(len(first))
            if begins == first or (name == PART and not begins):
                return True
    return False


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """While the block runs, this process is the only one that may write into a report folder, which it makes.

    Two runs into one folder would leave the record of one beside the verdict of the other. The lock is the system's: it
    ends with the process, however that ends. A copy of the process does not hold it (`let_go`).

    Raises:
        Refused: while another one writes, and when the folder cannot be made.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise refuse("report", str(folder), f"cannot be written: {error.strerror}", "give another folder") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = "another run is writing into it"
            raise refuse("report", str(folder), problem, "wait for it, or give a folder of its own") from None
        except OSError:
            pass  # a file system without locks
        _LOCKS.add(lock)
        yield
    finally:
        _LOCKS.discard(lock)
        with contextlib.suppress(OSError):
            os.close(lock)
        if made:
            with contextlib.suppress(OSError):  # bad input writes nothing, not even a folder
                folder.rmdir()


_LOCKS: set[int] = set()


def let_go() -> None:
    """In a forked copy: close what would keep the lock after the process that took it."""
    while _LOCKS:
        with contextlib.suppress(OSError):
            os.close(_LOCKS.pop())


class Recorder:
    """Writes a run while it happens; every line is on disk before the next test starts.

    The file is called `run.jsonl.part` until the footer is written, so a killed run never looks like a finished one.
    """

    def __init__(self, folder: Path) -> None:
        self._sole = contextlib.ExitStack()
        if heartbeat.FOLDER not in os.environ:  # under a supervisor, that one holds the lock
            self._sole.enter_context(only_writer(folder))
        make_folder(folder)
        self.path = folder / "run.jsonl"
        self._part = folder / PART
        self._file: TextIO = self._part.open("w", encoding="utf-8")
        self._above = hashlib.sha256()
        self._key = key()
        self._known = secrets_here(os.environ, sys.argv)
        self._results = 0

    def add(self, entry: object) -> None:
        text = f"{line(entry, self._known)}\n"
        self._file.write(text)
        self._file.flush()
        self._above.update(text.encode())
        self._results += isinstance(entry, Result)

    def close(self, judged: Verdict, finished: str) -> None:
        """Write the footer and give the file its name."""
        self.add(footer(self._above.hexdigest(), self._results, judged, finished, self._key))
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self.path)
        self._sole.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._sole.close()


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
    return codec.laid_out(schema()) + "\n"


def _read_line(text: str, number: int) -> Any:
    name = f"line {number}"
    try:
        data = json.loads(text, object_pairs_hook=codec.no_repeats)
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

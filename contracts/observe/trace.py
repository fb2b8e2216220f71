"""Traces as files: a folder with two files for each rank. docs/observe.md has the format.

`rank-00000.jsonl` has one JSON object a line, each with its kind under "e", from `begin` to `end`. A rank that died has
no `end`, or one that names the error. `rank-00000.sketches` has the count sketches that lines refer to by number: 1024
float64 each, little-endian. `rank-00000.values` has whole tensors, where they were asked for.

Reading needs torch only for the sketches.
"""

import array
import contextlib
import functools
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.spec.errors import Refusals, refuse
from contracts.spec.redaction import redact, redact_words, secrets_here

FORMAT, MINOR = "rankproof.trace/2", 4
VERSION = f"{FORMAT}.{MINOR}"
"""A later minor version has further kinds of lines and means the same by the others; another format does not."""
SKETCH_BYTES = 1024 * 8
LIMIT = 1 << 30
"""Bytes that a rank may write; what comes later is left out, and the trace says so."""
_NAME = re.compile(r"rank-(\d{5})\.jsonl")
_READ = re.compile(re.escape(FORMAT) + r"(?:\.(\d{1,4}))?")

Line = dict[str, Any]

_PLACED: dict[str, Any] = {"part": str, "partial": bool, "bits": str, "sketch": (int, None)}
_TENSOR: dict[str, Any] = {"step": int, "shape": [int], "dtype": str, "squares": float}
_COUNTS: dict[str, Any] = {"step": int, "name": str, "values": [float]}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "begin": {"version": str, "rank": int, "world": int, "command": [str], "run": str},
    "root": {"number": int, "type": str, "trainable": [str], "frozen": [str], "replicas": [int], "data": [int]},
    "code": {"number": int, "classes": [str], "names": [str], "of": [int], "files": [str]},
    "tied": {"names": [str]},
    "untied": {"step": int, "names": [str]},
    "input": {"step": int, "microbatch": int, "rows": [int], "random": str},
    "forward": _TENSOR | {"name": str, "call": int, "microbatch": int, "batched": bool},
    "drawn": {"step": int, "microbatch": int, "drawn": bool},
    "routed": {"step": int, "microbatch": int, "name": str, "tokens": int, "counts": [int], "twice": int},
    "handed": {"step": int, "microbatch": int, "name": str, "rows": int},
    "told-dropped": {"step": int, "microbatch": int, "name": str, "assignments": int},
    "counter": _COUNTS,
    "bias": _COUNTS,
    "counted": _COUNTS | {"again": bool},
    "loss": {"step": int, "backward": int, "value": float},
    "world": {"step": int, "rank": int, "size": int},
    "dropped": {"step": int, "microbatches": int, "backward": int},
    "left": {"step": int, "names": [str]},
    "clip": {"step": int, "max": float, "norm": float, "partial": bool, "names": [str]},
    "applied": {"step": int, "name": str, "before": [float], "gradient": [float]},
    "group": {"step": int, "optimizer": str, "number": int, "names": [str], "lr": float, "decay": float,
              "told": (float, None)},
    **dict.fromkeys(("weight", "gradient", "updated"), _TENSOR | {"name": str}),
    "moment": _TENSOR | {"name": str, "moment": str},
    "buffer": _TENSOR | {"name": str},
    "drawn-rows": {"step": int, "epoch": int, "numbers": [int]},
    "split": {"size": int, "shares": int, "numbers": [int]},
    "statistics": {"step": int, "names": [str]},
    "labels": {"step": int, "backward": int, "call": int, "classes": int, "counted": int, "weight": float,
               "dtype": str},
    "no-gradient": {"step": int, "name": str},
    "modes": {"step": int, "evaluating": [str]},
    "evaluation": {"step": int, "after": bool},
    "evaluated": {"step": int, "buffers": int, "changed": [str]},
    "told": {"step": int, "microbatches": int},
    "step": {"step": int, "backward": int, "microbatches": int},
    "collectives": {"step": int, "group": str, "said": [str]},
    "end": {"error": str, "full": bool},
}  # fmt: skip
"""Kind → the fields that are read, and of which type: a list of one type, or one type or None."""
MOST_RANKS = 100_000


def lines_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.jsonl"


def sketches_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.sketches"


class Writer:
    """The files of one rank. Lines are on disk when a step ends, or where devices fill them, after the next backward
    pass; those of the last step when it ends."""

    def __init__(
        self, folder: Path, rank: int, world: int, command: Sequence[str], about: Mapping[str, Any], *,
        place: Callable[[], tuple[int, int]] | None = None,
    ) -> None:  # fmt: skip
        """Begin the trace of a rank; `place` says its number and how many there are when it writes, if only then.

        Raises:
            Refused: where the folder cannot be written, or holds a trace of this rank.
        """
        self.known = secrets_here(os.environ, command)
        self.written, self.sketches, self.full, self.opened = 0, 0, False, False
        self.folder, self.command, self.about = folder, command, about
        self.place = place or (lambda: (rank, world))
        if place is None:
            self._open()

    def _open(self) -> None:
        if self.opened:
            return
        self.opened, folder = True, self.folder
        rank, world = self.place()
        self._values = sketches_of(folder, rank).with_suffix(".values")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lines = lines_of(folder, rank).open("x", encoding="utf-8")
            self._sketches = sketches_of(folder, rank).open("xb")
        except FileExistsError:
            raise refuse("out", str(folder), f"holds a trace of rank {rank}", "give a new folder") from None
        except OSError as error:
            raise refuse("out", str(folder), f"cannot be written: {error.strerror}", "give another folder") from None
        command = redact_words(self.command, self.known)
        self.add("begin", version=VERSION, rank=rank, world=world, command=command, **self.about)
        self.flush()

    def leave(self) -> None:
        """A fork's writes to the files go nowhere: they are its parent's."""
        if self.opened and not self._lines.closed:
            with Path(os.devnull).open("wb") as nowhere:
                for each in (self._lines, self._sketches):
                    os.dup2(nowhere.fileno(), each.fileno())

    def add(self, kind: str, /, **more: Any) -> None:
        """Write one line; without secrets, and nothing but the end once the limit is reached."""
        self._open()
        text = json.dumps({"e": kind, **more}, ensure_ascii=True, separators=(",", ":"), default=_plain)
        if self.known and any(each in text for each in self.known):
            text = redact(text, self.known)
        if self.written + len(text) > LIMIT and kind != "end":
            self.full = True
            return
        self.written += len(text) + 1
        self._lines.write(text + "\n")

    def lines(self, texts: Sequence[str]) -> None:
        """Write lines that are JSON already."""
        together = "\n".join([*texts, ""])
        if self.written + len(together) <= LIMIT and not any(each in together for each in self.known):
            self.written += len(together)
            self._lines.write(together)
            return
        for each in texts:
            held = json.loads(each)
            self.add(held.pop("e"), **held)

    def sketch(self, held: Any) -> int | None:
        """Write a sketch, an array or a tensor [1024] of float64 on the CPU, or several; give the number of the first,
        None if that is beyond the limit."""
        import numpy

        self._open()
        data = numpy.asarray(held).astype("<f8", copy=False).tobytes()
        if self.written + len(data) > LIMIT:
            self.full = True
            return None
        self._sketches.write(data)
        self.written += len(data)
        first, self.sketches = self.sketches, self.sketches + len(data) // SKETCH_BYTES
        return first

    def values(self, local: Any, pieces: Sequence[tuple[int, tuple[Any, ...]]], *, limited: bool) -> list[int] | None:
        """Write what is held of a tensor, with where it lies, and give its place in the file; None beyond the limit."""
        import torch

        self._open()
        kept = {"local": local.detach().cpu().clone(), "pieces": [(start, list(held)) for start, held in pieces]}
        data = io.BytesIO()
        torch.save(kept, data)
        if limited and self.written + data.tell() > LIMIT:
            self.full = True
            return None
        with self._values.open("ab") as file:
            at = file.tell()
            file.write(data.getbuffer())
        self.written += data.tell() if limited else 0
        return [at, data.tell()]

    def flush(self) -> None:
        if self.opened:
            self._sketches.flush()
            self._lines.flush()

    def close(self, error: str = "", **more: Any) -> None:
        """Write the end; `error` is the exception that ended the script, where one did."""
        self._open()
        if not self._lines.closed:
            self.add("end", error=redact(error, self.known)[:2000], full=self.full, **more)
            self._sketches.close()
            self._lines.close()


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The lines of one rank; `end` is None where it died before it could write one."""

    rank: int
    begin: Line
    lines: tuple[Line, ...]
    end: Line | None
    path: Path

    def of(self, *kinds: str) -> Iterator[Line]:
        return (line for line in self.lines if line["e"] in kinds)

    def sketch(self, number: int) -> Any:
        """A sketch as a torch tensor [1024], float64."""
        import torch  # only who compares needs it

        held = b""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            if 0 <= number < LIMIT // SKETCH_BYTES:
                file.seek(number * SKETCH_BYTES)
                held = file.read(SKETCH_BYTES)
        if len(held) < SKETCH_BYTES:
            raise refuse(
                "trace", self.path.name, f"has no sketch {number}", "copy the whole folder, or record it again"
            )
        values = array.array("d", held)
        if sys.byteorder == "big":
            values.byteswap()
        return torch.tensor(values, dtype=torch.float64)

    def values(self, place: Sequence[int]) -> Any:
        """This rank's part of a tensor, "local", and the "pieces" of the whole tensor that it has."""
        import torch

        held = b""
        with contextlib.suppress(FileNotFoundError), self.path.with_suffix(".values").open("rb") as file:
            file.seek(place[0])
            held = file.read(place[1])
        if len(held) < place[1]:
            name = self.path.with_suffix(".values").name
            raise refuse("trace", name, f"ends before byte {sum(place)}", "copy the whole folder, or record it again")
        return torch.load(io.BytesIO(held), weights_only=True)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A whole trace; `missing` are the ranks of the world that left no file."""

    folder: Path
    world: int
    ranks: tuple[RankTrace, ...]
    missing: tuple[int, ...] = field(default=())


def _plain(number: Any) -> Any:
    """A number of numpy's, as a script may give ranks to `new_group`."""
    return number.item()


def refuse_traces(folder: Path) -> None:
    """Refuse a folder that holds a trace."""
    if held := sorted(folder.glob("rank-*.jsonl")):
        raise refuse("out", str(folder), f"holds a trace of rank {int(held[0].stem[5:])}", "give a new folder")


def read(folder: Path) -> Trace:
    """Read a trace.

    Of a later minor version, lines of kinds that this suite does not know are left out and counted: the end of the
    rank has them under `unseen`, where what could not be placed is counted too.

    Raises:
        Refused: where there is none, where a line is no line of this version, or where the files are of several runs.
            A last line without its end, as a killed rank leaves it, is left out.
    """
    names = (
        sorted(path for path in folder.glob("rank-*.jsonl") if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    )
    if not names:
        raise refuse("trace", str(folder), "holds no trace", "record one: rankproof observe --out DIR train.py …")
    return _read(folder, tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in names))


@functools.lru_cache(maxsize=2)
def _read(folder: Path, files: tuple[tuple[Path, int, int], ...]) -> Trace:
    """Read once for all who ask: a trace of many ranks takes longer to read than to judge."""
    names = [path for path, _, _ in files]
    known: dict[str, Line] = {}
    ranks = [_rank(path, known) for path in names]
    found, world = Refusals(), ranks[0].begin["world"]
    for each in ranks:
        if each.begin["world"] != world or each.begin["run"] != ranks[0].begin["run"] or each.rank >= world:
            found.add(
                "trace", each.path.name, "is of another run than " + ranks[0].path.name, "record into a new folder"
            )
    found.raise_any()
    missing = sorted(set(range(world)) - {each.rank for each in ranks})
    return Trace(folder=folder, world=world, ranks=tuple(ranks), missing=tuple(missing))


def _rank(path: Path, known: dict[str, Line]) -> RankTrace:
    """The trace of a rank. `known` are lines without a sketch: those of replicas say the same, and are parsed once."""
    text = path.read_bytes().decode("utf-8", "replace")
    lines, whole = [], text.split("\n")[:-1]  # what follows the last newline was cut off
    new: list[int] = []
    for number, line in enumerate(whole, start=1):
        entry = known.get(line)
        if entry is None:
            new.append(number)
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict) or not isinstance(entry.get("e"), str):
                raise refuse("trace", f"{path.name}, line {number}", "is no line of a trace", "record it again")
            if entry.get("sketch", 0) is None:
                known[line] = entry
        lines.append(entry)
    begin = lines[0] if lines else {}
    said = _READ.fullmatch(str(begin.get("version")))
    if said is None:
        problem = (
            f"is of version {begin.get('version')}, and this suite reads {FORMAT} up to {VERSION} and what it adds"
        )
        raise refuse("trace", path.name, problem, "record it again, or read it with the suite that wrote it")
    later: Counter[str] = Counter()
    if int(said[1] or 0) > MINOR:
        later.update(line["e"] for line in lines if line["e"] not in _FIELDS)
    for number in new:
        entry = lines[number - 1]
        if entry["e"] not in later and (
            bad := _not_of_its_kind(entry, "begin" if number == 1 else entry["e"], most_steps=len(lines))
        ):
            raise refuse("trace", f"{path.name}, line {number}", f"has no valid {bad!r}", "record it again")
    rank, world = begin["rank"], begin["world"]
    if not 0 <= rank < world <= MOST_RANKS:
        raise refuse("trace", path.name, f"is of rank {rank} of {world}", "record it again")
    end = lines[-1] if lines[-1]["e"] == "end" else None
    if later:
        lines = [line for line in lines if line["e"] not in later]
        told = {f"line {kind!r} of {begin['version']}, which this suite ({VERSION}) does not know": count
                for kind, count in sorted(later.items())}  # fmt: skip
        before = end.get("unseen") if end else None
        end = end and end | {"unseen": (before if isinstance(before, dict) else {}) | told}
    return RankTrace(rank=rank, begin=begin, lines=tuple(lines[1:]), end=end, path=path.with_suffix(".sketches"))


def _not_of_its_kind(line: Line, kind: str, *, most_steps: int) -> str:
    """The first field that is not there, or of another type; empty where there is none. Each step writes a line."""
    wanted = dict(_FIELDS.get(kind, {"e": None}))
    if "shape" in wanted and line.get("placed") is not False:
        wanted |= _PLACED
    wanted |= {"steps": int} if kind == "end" and "steps" in line else {}
    steps = range(most_steps + 1)
    return next((name for name, of in wanted.items() if name not in line or not _is(line[name], of)
                 or (name in ("step", "steps") and line[name] not in steps)), "")  # fmt: skip


def _is(value: object, of: Any) -> bool:
    if isinstance(of, tuple):
        return value is None or _is(value, of[0])
    if isinstance(of, list):
        return isinstance(value, list) and all(_is(each, of[0]) for each in value)
    if isinstance(value, bool) or of not in (int, float):
        return of is not None and isinstance(value, of)
    if isinstance(value, int):
        return abs(value) < 1 << 64
    return of is float and (isinstance(value, float) or value in ("nan", "inf", "-inf"))  # the name of what is none

"""What a rank was doing: its Python stack, and the last collective of each of its groups."""

import json
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTHING = "nothing"
CALLS = 100  # of a group, that a rank tells of
FRAMES = 12  # of a stack, the innermost
OF_ONE_SIZE = ("reduce", "broadcast", "barrier", "allgather_base")  # other collectives may be uneven
HIDDEN = (
    "/_pytest/",
    "/pluggy/",
    "/pytest/__main__",
    "/ranks/",
    "<frozen ",
)  # frames of the test runner, the same for every test


def stack(thread: int) -> str:
    """The place of a thread of this process, as a traceback without the frames of the test runner."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "(the thread has ended)"
    frames = [each for each in traceback.extract_stack(frame) if not _hidden(each.filename)]
    return "".join(traceback.format_list(frames[-FRAMES:])).rstrip()


def raised_at(error: BaseException) -> str:
    """The origin of an exception, in the same form."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not _hidden(each.filename)]
    return "".join(traceback.format_list(frames[-FRAMES:])) + f"{type(error).__name__}: {str(error)[:500]}"


def _hidden(line: str) -> bool:
    return any(part in line for part in HIDDEN)


def collectives(since_ns: int = 0) -> list[str]:
    """The last collective of each group since a moment (Unix time, ns), one line per group."""
    last: dict[object, dict[str, object]] = {}
    for entry in _recorded():
        made = entry.get("time_created_ns", 0)
        if isinstance(made, int) and made >= since_ns:
            last[_name(entry)] = entry
    return [_line(group, entry) for group, entry in last.items()]


def called(since_ns: int = 0) -> dict[str, object]:
    """What a rank reports of its collectives: the last of each group, and all of them since a moment, in order."""
    return {"collectives": collectives(since_ns), "history": history(since_ns)}


def history(since_ns: int = 0) -> dict[str, list[str]]:
    """Group → its collectives since a moment, each as its operation, sizes and dtypes."""
    found: dict[str, list[str]] = {}
    for entry in _recorded():
        made = entry.get("time_created_ns", 0)
        alike = not entry.get("is_p2p")  # no two ranks have the same messages
        if isinstance(made, int) and made >= since_ns and alike:
            parts = (entry.get("profiling_name"), entry.get("input_sizes"), entry.get("input_dtypes"))
            found.setdefault(_name(entry), []).append(" ".join(str(part) for part in parts if part))
    return {group: calls[:CALLS] for group, calls in found.items()}


@dataclass(frozen=True)
class OddOne:
    """The rank whose collectives are the first to differ from those of most others, and how. `certain`: it called what
    cannot go together with what they called, so that everything that follows may come from it."""

    rank: int
    words: str
    certain: bool


def odd_one(views: Mapping[int, Mapping[str, Any]]) -> OddOne | None:
    """None where there is no such rank, as of two that differ from one another."""
    histories = {rank: view.get("history") or {} for rank, view in views.items()}
    for group in dict.fromkeys(group for each in histories.values() for group in each):
        calls = {rank: each[group] for rank, each in histories.items() if group in each}
        for number in range(max(map(len, calls.values()))):
            here = {rank: dict(enumerate(each)).get(number, NOTHING) for rank, each in calls.items()}
            (usual, most), *others = Counter(here.values()).most_common()
            if others and most > len(here) / 2:
                odd = min(rank for rank, call in here.items() if call != usual)
                rest = ", ".join(str(rank) for rank, call in here.items() if call == usual)
                words = f"rank {odd} differs: {here[odd]} in group {group}, where rank {rest} called {usual}"
                return OddOne(odd, words, certain=_never_together(here[odd], usual))
            if others:
                break
    return None


def _never_together(one: str, other: str) -> bool:
    if NOTHING in (one, other):  # the rank may have failed before, and be no cause
        return False
    names = {call.partition(" ")[0] for call in (one, other)}
    return len(names) == 2 or any(part in one for part in OF_ONE_SIZE)


def _name(entry: Mapping[str, object]) -> str:
    group = entry.get("process_group") or entry.get("pg_id")
    return " ".join(map(str, group)) if isinstance(group, list) else str(group)


def _line(group: object, entry: dict[str, object]) -> str:
    sizes = " ".join(str(entry[name]) for name in ("input_sizes", "input_dtypes") if entry.get(name))
    return (
        f"group {group}: {entry.get('profiling_name')} number {entry.get('collective_seq_id')} "
        f"{sizes} {entry.get('state', '')}".rstrip()
    )


def _recorded() -> list[dict[str, object]]:
    """The entries of c10d's flight recorder, the oldest first; empty where it has none.

    Private in torch: the public way is a file, written when the process dies. The dump omits stacks, which need the
    GIL. Seen in 2.9 to 2.13; TORCH_FR_BUFFER_SIZE turns it on.
    """
    c10d = getattr(sys.modules.get("torch._C"), "_distributed_c10d", None)
    found: list[dict[str, object]] = []
    for dump in (getattr(c10d, "_dump_fr_trace_json", None), getattr(c10d, "_dump_nccl_trace_json", None)):
        if dump is not None:
            try:
                found += json.loads(dump(True, False)).get("entries", [])
            except (RuntimeError, ValueError):
                continue
    return found


def tail(path: Path, characters: int = 4000) -> str:
    """The end of a file that another process may have left."""
    try:
        return path.read_text(errors="replace")[-characters:].strip()
    except OSError:
        return ""


def crash(path: Path) -> str:
    """The stacks that the interpreter wrote at a crash or on request, without threads of the test runner."""
    said = []
    for block in tail(path, 100_000).split("\n\n"):
        lines = [line for line in block.splitlines() if not _hidden(line) and not line.startswith("Extension modules:")]
        frames = [line for line in lines if line.startswith("  File ") and "/threading.py" not in line]
        if frames or block.startswith(("Fatal", "Timeout")):
            said += lines
    return "\n".join(said[-60:])


def shown(views: dict[int, dict[str, object]]) -> str:
    """What several ranks were doing; ranks with equal views share one entry."""
    alike: dict[str, list[int]] = {}
    for rank, view in sorted(views.items()):
        lines = [str(view["stack"])] if view.get("stack") else []
        listed = view.get("collectives")
        lines += [f"last collective of {line}" for line in listed] if isinstance(listed, list) else []
        alike.setdefault("\n".join(lines) or "had left the test; no collective in it", []).append(rank)
    return "\n".join(f"rank {', '.join(map(str, ranks))}:\n{text}" for text, ranks in alike.items())

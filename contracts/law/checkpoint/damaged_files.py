"""Checkpoints that were truncated, altered, mixed or planted: refused by file name, and never executed."""

import contextlib
import os
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from contracts.contract import contract
from contracts.law._support import saved_states
from contracts.law._support.late import torch
from contracts.law._support.saved_states import FAMILIES, folder, load_failure, snapshot_difference, state, target
from contracts.spec import Checkpointing, Refused

Damage = Literal[
    "cut off", "emptied", "lengthened", "flipped in one bit", "altered in one digit", "removed", "taken from step 2"
]  # fmt: skip
DAMAGES: dict[str, Damage] = {
    "truncated": "cut off",
    "emptied": "emptied",
    "longer": "lengthened",
    "corrupt": "flipped in one bit",
    "another-digit": "altered in one digit",
    "missing": "removed",
    "mixed-steps": "taken from step 2",
}


@contract("CKPT-04c", asks=("write_checkpoint", "load_checkpoint"), cases=DAMAGES, source=FAMILIES)
def a_damaged_file_is_refused_by_name(stack: Checkpointing, damage: Damage) -> None:
    """A checkpoint with one file that is cut off, altered, missing or taken from another save is refused with the name
    of that file, and the load leaves its target untouched. A load may also succeed if it still returns what was saved.

    A flipped bit in a weight still makes a valid number, and so does another digit in a file of text. Shards of two
    steps have the same shapes.
    """
    old, saved = state(2), state(4)
    with folder() as at:
        others = saved_states.write(stack, at, old)
        for path, other in zip(saved_states.write(stack, at, saved), others, strict=True):
            content = path.read_bytes()
            said = f"{path.name} of step 4 was {damage}, and"
            for damaged in _damaged(content, other.read_bytes(), damage, saved.position):
                path.unlink() if damaged is None else path.write_bytes(damaged)
                before = target(saved)
                loaded = stack.load_checkpoint(str(at), 4, before)
                if loaded.refused:
                    words = saved_states.target_change(loaded.state, before)
                    assert not words, f"{said} the load was refused, but {words}"
                    assert path.name in loaded.refused, f"{said} the refusal does not name it: {loaded.refused}"
                else:
                    words = snapshot_difference(loaded.state, saved)
                    assert not words, f"{said} the load went through, but {words}"
            path.write_bytes(content)
        words = load_failure(stack, at, saved, 4)
        assert not words, f"every file of step 4 is what it was, and {words}"


DIGITS = 16  # of a file, each altered alone; evenly spread, since what nothing but a digest guards is in few places


def _damaged(content: bytes, other: bytes, damage: Damage, position: Iterable[str]) -> list[bytes | None]:
    """The content of a file after each damage; None if it is gone. Of digits, also the last of each counter."""
    if damage == "altered in one digit":
        places = [place for place, byte in enumerate(content) if byte in b"0123456789"]
        counters = (re.finditer(rb"%b\W{1,3}\d+" % re.escape(name.encode()), content) for name in position)
        ends = [match.end() - 1 for found in counters for match in found]
        return [_altered(content, place, 1) for place in [*places[:: max(1, len(places) // DIGITS)], *ends]]
    return [
        {
            "cut off": content[: max(0, len(content) - 5)], "emptied": b"", "lengthened": content + b"\0\0\0\0",
            "flipped in one bit": _altered(content, len(content) // 2, 16), "removed": None, "taken from step 2": other,
        }[damage]
    ]  # fmt: skip


def _altered(content: bytes, place: int, bits: int) -> bytes:
    return content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]


class _Payload:
    """An object whose pickle runs code when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)  # leaves nothing open behind it


Form = Literal["pickle", "torch.save"]
BESIDE = (
    ".metadata",
    "common.pt",
    "extra_state.pt",
    "meta_000004.pkl",
    "rng_state.pth",
    "__0_0.distcp",
    "scheduler.bin",
)
PLANTED: dict[str, tuple[Form, Literal["in place", "beside", "alone"]]] = {
    "pickle-in-place-of-a-file": ("pickle", "in place"),
    "torch-file-in-place-of-a-file": ("torch.save", "in place"),
    "pickles-beside": ("pickle", "beside"),
    "torch-files-beside": ("torch.save", "beside"),
    "nothing-but-pickles": ("pickle", "alone"),
    "nothing-but-torch-files": ("torch.save", "alone"),
}


@contract("CKPT-04g", asks=("write_checkpoint", "load_checkpoint", "latest_checkpoint"), cases=PLANTED, source=FAMILIES)
def no_pickle_is_executed(stack: Checkpointing, form: Form, where: Literal["in place", "beside", "alone"]) -> None:
    """Neither finding nor loading a checkpoint executes a pickle that lies in place of one of its files, beside them,
    or instead of them all. The load gives what was saved, or is refused.

    DCP's `.metadata` is a pickle, and so are `common.pt` and `extra_state.pt`. If they are executed, whoever can write
    to the checkpoint volume can run code in the training job.
    """
    saved = state(4)
    with folder() as at, folder() as aside:
        marker = aside / "ran"
        payload = _payload(form, marker)
        paths = saved_states.write(stack, at, saved)
        planted = paths if where == "in place" else [paths[0].parent / name for name in BESIDE]
        if where == "alone":
            for path in paths:
                path.unlink()
        for path in planted:
            content = path.read_bytes() if path.exists() else None
            path.write_bytes(payload)
            with contextlib.suppress(Refused):  # what names the latest one may be what was replaced
                stack.latest_checkpoint(str(at))
            for step in (4, None):
                before = target(saved)
                loaded = stack.load_checkpoint(str(at), step, before)
                assert not marker.exists(), f"{path.name} was a {form} file, and its pickle was executed"
                words = (
                    saved_states.target_change(loaded.state, before)
                    if loaded.refused
                    else snapshot_difference(loaded.state, saved)
                )
                assert not words, f"{path.name} was a {form} file, and after the load {words}"
            if content is None and where == "beside":
                path.unlink()
            elif content is not None:
                path.write_bytes(content)


def _payload(form: Form, marker: Path) -> bytes:
    if form == "pickle":
        return pickle.dumps(_Payload(marker))
    import io

    content = io.BytesIO()
    torch.save({"step": _Payload(marker)}, content)
    return content.getvalue()

"""The user's command: where its script stands, so that `observe` comes in front of it, and the same on one rank."""

import re
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"python[\d.]*")
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
LAUNCHERS = (*_TORCHRUN, "accelerate.commands.accelerate_cli", "accelerate.commands.launch")
_PROGRAMS = ("torchrun", "accelerate", "deepspeed")
_ONE = ("--standalone", "--nproc-per-node=1")


def script_at(words: Sequence[str]) -> int | None:
    """The place of the script in a command, with the -m of a module; None for a command that starts none by Python."""
    begun, at = False, 0
    while at < len(words):
        word = words[at]
        if begun and word in ("-m", "--module") and at + 1 < len(words):
            if words[at + 1] not in LAUNCHERS:
                return at
            at += 1
        elif begun and word.endswith(".py"):
            return at
        elif begun and word == "-c":
            return None
        begun = begun or starts_python(word)
        at += 1
    return None


def starts_python(word: str) -> bool:
    """Whether a word is an interpreter, or a launcher of one."""
    return bool(_PYTHON.fullmatch(Path(word).name)) or Path(word).name in _PROGRAMS


def observed(words: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """The command whose script is observed with these options."""
    at = script_at(words)
    assert at is not None
    script = ("-m", *words[at + 1 :]) if words[at].startswith("-") else words[at:]
    module = "--module" if any(Path(word).name == "deepspeed" for word in words[:at]) else "-m"
    return (*words[:at], module, "rankproof", "observe", *options, *script)


def on_one_rank(words: Sequence[str]) -> tuple[str, ...] | None:
    """The command with torchrun's options for one rank; None if torchrun does not start it."""
    at = script_at(words)
    heads = [number for number, word in enumerate(words) if Path(word).name == "torchrun" or word in _TORCHRUN]
    if at is None or not heads or heads[0] > at:
        return None
    head, options = words[: heads[0] + 1], words[heads[0] + 1 : at]
    inner = next((number for number, word in enumerate(options) if _PYTHON.fullmatch(Path(word).name)), len(options))
    plain = [each for each in options if each == "--no-python"]
    return (*head, *_ONE, *plain, *options[inner:], *words[at:])

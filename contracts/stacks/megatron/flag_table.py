"""Megatron's flags as a table, for machines without Megatron.

The table was dumped from the live parser of Megatron-Core 0.19.2; where that is installed, a test compares them flag by
flag. An argparse parser is built from the table, so names, types, choices and arity are judged exactly as by Megatron.
Of its validation only the relations of `flag_rules` are known. Each was observed on the real validator, and a test
replays the observations. Nothing else is known, and every reading says so.
"""

import argparse
import contextlib
import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contracts.spec import Layout, Reading, Stage
from contracts.stacks.megatron.arguments import as_text
from contracts.stacks.megatron.flag_rules import RULES, Asked, table

CANONICAL = "0.19.2"
UNKNOWN_BEYOND = (
    "known from a table of facts: names, types, choices and some relations; Megatron's validation did not run"
)

_TYPES: Mapping[str | None, Callable[[str], Any]] = {"int": int, "float": float, "bool": bool}
"""Types by name. A type that is a function of Megatron's is read as text, because the table does not contain it."""


MOST_WORDS = 4096  # argparse takes time quadratic in the flags that it does not know


class FlagTable:
    """Reads an argv by the flag table, for one version of Megatron-Core.

    Args:
        version: later flags are unknown, removed flags are known by name only. Relations and types were observed on
            `CANONICAL`.
    """

    name = "flag table"
    offers = frozenset({"read_argv"})
    layouts: frozenset[Layout] = frozenset()

    def __init__(self, version: str = CANONICAL) -> None:
        self.version = version
        sha1 = table()["source"]["canonical"].partition("sha1 ")[2].split()[0]
        self.labels: Mapping[str, str] = {
            "read_argv": f"substituted: table of facts, megatron-core {CANONICAL}, sha1 {sha1}"
        }

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        """How the table reads an argv. `accepted` means that no known rule refuses it."""

        def reading(stage: Stage, message: str, **more: Any) -> Reading:
            return Reading(stage=stage, message=message, version=self.version, provenance="substituted", **more)

        if len(argv) > MOST_WORDS:
            return reading("parse", f"{len(argv)} words; a command of a launch has at most {MOST_WORDS}")
        parser = _parser(self.version)
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
                args = parser.parse_args(argv)
        except SystemExit:
            said = complaint.getvalue().strip().rpartition(" error: ")[2] or "exits without reading further"
            return reading("parse", f"{said}{_history(argv, self.version)}")
        values = {name: as_text(value) for name, value in vars(args).items()}
        if self.version != CANONICAL:
            return reading(
                "accepted", f"{UNKNOWN_BEYOND}; relations were not observed on {self.version}", values=values
            )
        for rule in RULES:
            words = rule.refuses(Asked(args, env, world))
            if words:
                return reading(rule.stage, f"{words} (observed on {CANONICAL})", values=values)
        return reading("accepted", UNKNOWN_BEYOND, values=values, dropped=_dropped(argv, args, parser))


def _dropped(argv: Sequence[str], args: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, str]:
    """Flags that Megatron is known to accept and then ignore."""
    known = parser._option_string_actions
    given = [flag for word in argv if (flag := word.partition("=")[0]) in known]
    asked = Asked(args, {}, 0)
    dropped = {}
    for index, flag in enumerate(given):
        if any(known[later].dest == known[flag].dest for later in given[index + 1 :]):
            dropped[flag] = "is given again later, and the last one wins"
    if args.sequence_parallel and asked.tp == 1:
        dropped["--sequence-parallel"] = "is switched off where tensor parallel size is 1"
    if "--num-query-groups" in given and not args.group_query_attention:
        dropped["--num-query-groups"] = "is not read without --group-query-attention"
    if asked.pattern:
        main, *heads = asked.pattern.split("/")
        depth = len(main.replace("|", ""))
        if args.num_layers not in (None, depth):
            dropped["--num-layers"] = f"asks for {args.num_layers}, but the pattern has {depth}"
        if heads and args.mtp_num_layers not in (None, len(heads)):
            dropped["--mtp-num-layers"] = f"asks for {args.mtp_num_layers}, but the pattern has {len(heads)}"
    for flag in given:
        note = table()["deprecated_notes"].get(flag, "")
        if note.startswith("accepted no-op"):
            dropped[flag] = note
    return dropped


def _history(argv: Sequence[str], version: str) -> str:
    """When the flags that a version does not know came or went, in brackets."""
    gone = table()["gone_from_canonical"]
    came = {name: first for flag in table()["flags"] for name, first in flag["since"].items()}
    told = []
    for flag in dict.fromkeys(word.partition("=")[0] for word in argv if word.startswith("--")):
        if flag in gone:
            told.append(f"{flag} existed from {gone[flag]['first']} to {gone[flag]['last']}")
        elif flag in came and _order(came[flag]) > _order(version):
            told.append(f"{flag} exists since {came[flag]}")
    return f" ({'; '.join(told)})" if told else ""


@functools.cache
def _parser(version: str) -> argparse.ArgumentParser:
    """A parser with the flags that a version has."""
    parser = argparse.ArgumentParser(prog="megatron", allow_abbrev=False)
    for fact in table()["flags"]:
        names = [name for name in fact["names"] if _order(fact["since"][name]) <= _order(version)]
        if names:
            _add(parser, names, fact)
    for name, life in table()["gone_from_canonical"].items():
        if _order(life["first"]) <= _order(version) <= _order(life["last"]):
            parser.add_argument(name, nargs="*", help=argparse.SUPPRESS)  # only its name is recorded
    return parser


def _add(parser: argparse.ArgumentParser, names: Sequence[str], fact: Mapping[str, Any]) -> None:
    common = {"dest": fact["dest"], "default": fact["default"], "help": argparse.SUPPRESS}
    match fact["action"]:
        case "StoreTrue":
            parser.add_argument(*names, action="store_true", **common)
        case "StoreFalse":
            parser.add_argument(*names, action="store_false", **common)
        case "BooleanOptional":
            positive = [name for name in names if not name.startswith("--no-")] or list(names)
            parser.add_argument(*positive, action=argparse.BooleanOptionalAction, **common)
        case _:
            kind, choices = _TYPES.get(fact["type"], str), fact["choices"]
            parser.add_argument(*names, type=kind, choices=choices, nargs=fact["nargs"], **common)


def _order(version: str) -> tuple[int, ...]:
    """A version as numbers, up to the first part that is not one: `0.20.0.dev main` is 0.20.0."""
    numbers: list[int] = []
    for part in version.split("."):
        if not re.fullmatch("[0-9]{1,9}", part):
            break
        numbers.append(int(part))
    return tuple(numbers)

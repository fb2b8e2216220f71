"""The deviations file: the violations that a stack's owner declares, with a reason, an owner and an expiry date.

[[deviation]]
id = "ARGV-03b"
case = "repeated-*"          # shell-style selector over case names
reason = "argparse lets the last of a repeated flag win"
issue = "https://…"
owner = "launcher team"
expires = 2027-02-28
"""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

from contracts.spec.codec import decode
from contracts.spec.errors import Refusals, Refused, refuse
from contracts.spec.records import Deviation


def load(path: Path) -> tuple[Deviation, ...]:
    """Read a deviations file.

    Raises:
        Refused: when it cannot be read, is not TOML, or an entry lacks a field, has an unknown one or an empty one;
            every fault at once.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(
            "deviations", str(path), f"cannot be read: {error.strerror}", "give the path of a TOML file"
        ) from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of too many digits, too deep
        raise refuse("deviations", str(path), f"is not TOML: {error}", "see docs/deviations/") from None
    entries = data.pop("deviation", [])
    found = Refusals()
    for key in data:
        found.add("deviations", key, "is not a table of this file", "write [[deviation]] tables only")
    if not isinstance(entries, list):
        raise refuse("deviations", "deviation", "is one table", "write [[deviation]], with double brackets")
    declared = []
    for number, entry in enumerate(entries, start=1):
        try:
            declared.append(_entry(entry, f"deviation {number}"))
        except Refused as refused:
            found.extend(refused)
    found.raise_any()
    return tuple(declared)


def _entry(entry: object, name: str) -> Deviation:
    if not isinstance(entry, dict):
        raise refuse(name, entry, "is not a table", "write [[deviation]] tables only")
    expires = entry.get("expires")
    if isinstance(expires, datetime.date) and not isinstance(expires, datetime.datetime):
        entry = {**entry, "expires": expires.isoformat()}
    deviation = decode(Deviation, entry, name=name)
    found = Refusals()
    for field in ("id", "case", "reason", "issue", "owner"):
        value = getattr(deviation, field)
        found.unless(
            bool(value.strip()), f"{name}.{field}", value, "is empty", "say it; a reader must be able to judge"
        )
    try:
        datetime.date.fromisoformat(deviation.expires)
    except ValueError:
        found.add(f"{name}.expires", deviation.expires, "is not a date", "write YYYY-MM-DD")
    found.raise_any()
    return deviation

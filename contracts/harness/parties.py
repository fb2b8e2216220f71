"""Names → parties: who is put under test, and who assists with what the subject does not answer itself."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from contracts.spec.errors import Unreachable, refuse
from contracts.spec.records import Subject
from contracts.spec.stack import Party


def _reference() -> Party:
    from contracts.stacks.reference.stack import Reference

    return Reference()


def _megatron() -> Party:
    from contracts.stacks.megatron import Megatron

    return Megatron()


def _flag_table() -> Party:
    from contracts.stacks.flag_table import FlagTable

    return FlagTable()


BY_NAME: Mapping[str, Callable[[], Party]] = {
    "reference": _reference,
    "megatron": _megatron,
    "flag-table": _flag_table,
}
"""The parties that ship here. The next one is a file under `stacks/` and a line in this table."""

NO_ONE = "none"


def load(name: str) -> Party:
    """The party behind a name.

    `reference`, `megatron` or `flag-table`; `megatron==0.16.1` for one version; `launched:COMMAND` for a stack
    behind a command; `package.module:Name` for anything importable (a class is called without arguments).

    Raises:
        Refused: for a name that leads nowhere.
        Unreachable: for a party whose environment is missing.
    """
    if name in BY_NAME:
        return BY_NAME[name]()
    head, _, rest = name.partition("==")
    if head == "megatron" and rest:
        from contracts.stacks.megatron import Megatron

        return Megatron(version=rest)
    head, _, rest = name.partition(":")
    if head == "launched" and rest:
        from contracts.stacks.launched import Launched

        return Launched(tuple(shlex.split(rest)))
    if head and rest:
        return _imported(name, head, rest)
    known = ", ".join([*BY_NAME, "megatron==VERSION", "launched:COMMAND", "package.module:Name"])
    raise refuse("stack", name, "is not a stack", f"use one of {known}")


def assistants(subject: Party, named: tuple[str, ...], *, quick: bool) -> tuple[tuple[str, Party], ...]:
    """Who answers what the subject does not, with the names they were loaded by.

    Named ones are taken as they are; by default a launcher is assisted by the reference, which emits for it, and
    any other stack by Megatron-Core where it is installed and by the table of its flags. `quick` leaves Megatron's
    interpreter alone.
    """
    if named:
        return tuple((name, load(name)) for name in named if name != NO_ONE)
    if "launch" not in subject.offers:
        return (("reference", _reference()),)
    found: list[tuple[str, Party]] = []
    if not quick:
        # Without it, what only Megatron can answer is "not run", with the command that installs it.
        with contextlib.suppress(Unreachable):
            found.append(("megatron", _megatron()))
    return (*found, ("flag-table", _flag_table()))


def subject_of(party: Party, origin: str) -> Subject:
    """How a party introduces itself in a report."""
    return Subject(
        name=party.name,
        version=party.version,
        origin=origin,
        offers=frozenset(party.offers),
        layouts=frozenset(party.layouts),
        labels=dict(party.labels),
    )


def _imported(name: str, module: str, attribute: str) -> Party:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a stack in the user's checkout, as `python -m` would find it
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise refuse(
            "stack", name, f"cannot be imported: {error}", "check the module's path and its imports"
        ) from error
    except Exception as error:
        raise Unreachable(f"{module} raised {type(error).__name__} at import: {error}") from error
    if not hasattr(found, attribute):
        raise refuse("stack", name, f"{module} has no {attribute}", "write package.module:Name")
    party = getattr(found, attribute)
    if isinstance(party, type):
        try:
            party = party()
        except Exception as error:
            raise Unreachable(f"{name} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(party, Party):
        missing = [each for each in ("name", "version", "offers", "layouts", "labels") if not hasattr(party, each)]
        raise refuse("stack", name, f"is not a stack: it has no {', '.join(missing)}", "see contracts/spec/stack.py")
    return party

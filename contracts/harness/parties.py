"""Parties by name: the stack under test, and the assistants that answer what it does not answer itself."""

import contextlib
import difflib
import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from contracts.court import repository
from contracts.court.deadline import Overdue, deadline
from contracts.court.judge import DEADLINE_S
from contracts.spec import Layout, Party, Refusals, Refused, Unreachable, abilities_of, declared_by, questions, refuse
from contracts.spec.codec import conforms
from contracts.spec.records import Answering, Subject
from contracts.stacks.kit.answering import answering_of


def _reference() -> Party:
    from contracts.stacks.reference.stack import Reference

    return Reference()


def _megatron() -> Party:
    from contracts.stacks.megatron import Megatron

    return Megatron()


def _megatron_distributed_optimizer() -> Party:
    from contracts.stacks.megatron import Megatron

    return Megatron(distributed_optimizer=True)


def _torchtitan() -> Party:
    from contracts.stacks.torchtitan.stack import Torchtitan

    return Torchtitan()


def _transformers() -> Party:
    from contracts.stacks.transformers.stack import Transformers

    return Transformers()


def _flag_table() -> Party:
    from contracts.stacks.megatron.flag_table import FlagTable

    return FlagTable()


BY_NAME: Mapping[str, Callable[[], Party]] = {
    "reference": _reference,
    "megatron": _megatron,
    "megatron-distributed-optimizer": _megatron_distributed_optimizer,
    "torchtitan": _torchtitan,
    "transformers": _transformers,
    "flag-table": _flag_table,
}
"""The parties that ship here. A further one is a file under `stacks/` and a line in this table."""

VERSIONED = frozenset({"megatron", "megatron-distributed-optimizer", "torchtitan", "transformers"})
"""Those that `NAME==VERSION` asks for one version."""
NO_ONE = "none"


def load(name: str, *, deadline_s: float = DEADLINE_S) -> Party:
    """The party that a name means.

    `reference`, `megatron` or `flag-table`; `megatron==0.16.1` for one version; `launched:COMMAND` for a stack
    that a command serves; `package.module:Name` for anything importable (a class is called without arguments).

    Raises:
        Refused: for a name that leads nowhere.
        Unreachable: for a party whose environment is missing, or that cannot be loaded within the deadline.
    """
    try:
        with deadline(deadline_s, f"{name} while it was loaded"):
            return _load(name)
    except Overdue:
        raise Unreachable(f"{name} could not be loaded within {deadline_s:g} s") from None
    except (Refused, Unreachable, KeyboardInterrupt):
        raise
    except BaseException as error:  # as of a package that is installed and fails at import
        raise Unreachable(f"{name} raised {type(error).__name__} while it was loaded: {error}") from error


class Absent:
    """Stands in a record for a stack that could not be loaded. It answers nothing."""

    version = "not loaded"
    offers: frozenset[str] = frozenset()
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}

    def __init__(self, name: str) -> None:
        self.name = name


def refuse_unknown(name: str) -> None:
    """Refuse a name that leads nowhere by its form, without importing anything.

    Raises:
        Refused: with the name that may be meant.
    """
    head, _, version = name.partition("==")
    module, _, attribute = name.partition(":")
    if name in BY_NAME or (version and head in VERSIONED) or (module and attribute):
        return
    known = ", ".join([*BY_NAME, "megatron==VERSION", "launched:COMMAND", "package.module:Name"])
    near = difflib.get_close_matches(head.lower(), BY_NAME, n=1)
    module, _, attribute = name.rpartition(".")
    meant = f"{near[0]!r}" if near else f"'{module}:{attribute}'" if module and attribute.isidentifier() else ""
    raise refuse("stack", name, "is not a stack", f"use one of {known}{f'; did you mean {meant}?' if meant else ''}")


def _load(name: str) -> Party:
    refuse_unknown(name)
    if name in BY_NAME:
        return BY_NAME[name]()
    head, _, rest = name.partition("==")
    if head in ("megatron", "megatron-distributed-optimizer") and rest:
        from contracts.stacks.megatron import Megatron

        return Megatron(version=rest, distributed_optimizer=head != "megatron")
    if head == "torchtitan" and rest:
        from contracts.stacks.torchtitan.stack import Torchtitan

        return Torchtitan(version=rest)
    if head == "transformers" and rest:
        from contracts.stacks.transformers.stack import Transformers

        return Transformers(version=rest)
    head, _, rest = name.partition(":")
    if head == "launched" and rest:
        from contracts.stacks.launched import Launched

        return Launched(tuple(shlex.split(rest)))
    return _imported(name, head, rest)


def assistants(subject: Party, named: tuple[str, ...], *, quick: bool) -> tuple[tuple[str, Party], ...]:
    """Who answers what the subject does not, with the names they were loaded by.

    Named ones are taken as they are; by default a launcher is assisted by the reference, which emits for it, and
    any other stack by Megatron-Core where it is installed and by the table of its flags. `quick` does not
    start Megatron's interpreter.
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
        abilities=abilities_of(party),
        conventions=declared_by(party),
        places=places(party),
        answering=answering_of(party),
    )


def apart(subjects: Iterable[Subject]) -> str:
    """How the code of two processes differs that answer under one name and version, in words."""
    found: dict[tuple[str, str], Answering] = {}
    for subject in subjects:
        for each in subject.answering:
            other = found.setdefault((f"{subject.name} {subject.version}", each.module), each)
            if other.code != each.code:
                return (
                    f"two answer as {subject.name} {subject.version}: the {other.process} has {_code(other)}, "
                    f"the {each.process} has {_code(each)}; give both the same, by --at PATH"
                )
    return ""


def _code(each: Answering) -> str:
    at = f", commit {each.commit[:9]}" if each.commit else ""
    return (
        f"{each.module} {each.version} of {each.path} (files {each.digest[:12]}{at}, torch {each.torch}, {each.python})"
    )


def places(party: Party) -> dict[str, str]:
    """The place of each question's code, as `file:line`; a question that is passed on to another process or
    that our own package answers elsewhere has no place."""
    here, ours = repository.root(), Path(__file__).parents[1]
    found = {}
    for question in sorted(party.offers):
        code = getattr(inspect.unwrap(getattr(type(party), question, None) or _nothing), "__code__", None)
        if code is None or code is _nothing.__code__:
            continue
        file = Path(code.co_filename)
        if file.is_relative_to(here):
            found[question] = f"{repository.told(file)}:{code.co_firstlineno}"
        elif not file.is_relative_to(ours):
            found[question] = f"{file}:{code.co_firstlineno}"
    return found


def _nothing() -> None:
    """Stands for a question without code of its own."""


def _imported(name: str, module: str, attribute: str) -> Party:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a stack in the user's checkout, as `python -m` would find it
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if not (error.name and f"{module}.".startswith(f"{error.name}.")):  # of what the stack imports, not of its name
            raise Unreachable(f"{module} raised {type(error).__name__} at import: {error}") from error
        raise refuse(
            "stack", name, f"cannot be imported: {error}", "check the module's path and its imports"
        ) from error
    except (Overdue, KeyboardInterrupt):
        raise
    except BaseException as error:  # `sys.exit()` at import raises no Exception, and must not end the gate
        raise Unreachable(f"{module} raised {type(error).__name__} at import: {error}") from error
    if not hasattr(found, attribute):
        raise refuse("stack", name, f"{module} has no {attribute}", "write package.module:Name")
    party = getattr(found, attribute)
    try:
        if isinstance(party, type):
            party = party()
        introduced(name, party)
    except (Refused, Unreachable, Overdue, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Unreachable(f"{name} cannot be built: {type(error).__name__}: {error}") from error
    made: Party = party
    return made


def introduced(name: str, party: object) -> None:
    """Refuse a party that does not say properly who it is; every fault at once."""
    missing = [each for each in ("name", "version", "offers", "layouts", "labels") if not hasattr(party, each)]
    if missing:
        raise refuse("stack", name, f"is not a stack: it has no {', '.join(missing)}", "see contracts/spec/stack.py")
    found = Refusals()
    for field, wanted in _SAYS.items():
        said = getattr(party, field)
        found.unless(
            conforms(wanted, said), f"{name}.{field}", said, f"is not a {wanted}", "see contracts/spec/stack.py"
        )
    found.raise_any()
    assert isinstance(party, Party)
    for field in ("name", "version"):
        said = getattr(party, field)
        found.unless(bool(said), f"{name}.{field}", said, "is empty", "a report must be able to name it")
    for question in sorted({*party.offers, *party.labels} - questions().keys()):
        found.add(f"{name}.offers", question, "is not a question", f"the questions are {', '.join(questions())}")
    found.raise_any()


_SAYS: Mapping[str, Any] = {
    "name": str,
    "version": str,
    "offers": frozenset[str],
    "layouts": frozenset[Layout],
    "labels": Mapping[str, str],
}

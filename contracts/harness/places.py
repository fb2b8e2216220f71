"""The places of a contract: its check, its mutants, the functions of the reference that it guards, and the commands
that judge it."""

import inspect
import re
import shlex
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import contracts
from contracts.contract import LAW, Contract, Mutant
from contracts.harness import parties

_ROOT = Path(contracts.__file__).parents[1]
_OURS = "contracts.stacks.reference."


def place(function: Any) -> str:
    """File and line of a function."""
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_firstlineno}"


def of_mutant(mutant: Mutant) -> str:
    """File and line of a mutant, whether it is written as a class, as a function or as a call that names it."""
    file = Path(str(sys.modules[mutant.make.__module__].__file__))
    text = file.read_text(encoding="utf-8")
    at = re.search(rf'^(?:class|def) {mutant.name}\b|"{mutant.name}"', text, re.MULTILINE)
    return f"{file.relative_to(_ROOT)}:{text.count(chr(10), 0, at.start() if at else 0) + 1}"


def answers(contract: Contract) -> dict[str, str]:
    """Question → where the reference answers it."""
    answering: Any = type(parties.load("reference"))
    return {asked: place(getattr(answering, asked)) for asked in contract.asks if hasattr(answering, asked)}


def guarded(contract: Contract) -> dict[str, str]:
    """The functions of the reference that the mutants of a contract change, by name: where they stand."""
    found = {}
    for mutant in LAW.mutants_of(contract.id):
        for function in _changed(mutant.make):
            code = getattr(inspect.unwrap(function), "__code__", None)
            if code is not None and code.co_filename.startswith(str(_ROOT)):
                found[function.__qualname__] = place(function)
    return {name: found[name] for name in sorted(found) if found[name] not in answers(contract).values()}


def _changed(make: type) -> Iterator[Any]:
    """The former functions of those that a mutant replaces, on a class of the reference or on the reference itself."""
    for owner, name in getattr(make, "replaces", ()):
        yield _function(inspect.getattr_static(owner, name))
    yield from _overridden(make)


def _overridden(made: type) -> Iterator[Any]:
    """What a class of the mutants does not inherit from the reference."""
    for at, base in enumerate(made.__mro__):
        for name, value in vars(base).items() if "_bugs" in base.__module__ else ():
            owners = (each for each in made.__mro__[at + 1 :] if name in vars(each))
            owner = next((each for each in owners if each.__module__.startswith(_OURS)), None)
            if owner is not None and _function(value) is not None and not hasattr(value, "__wrapped__"):
                yield _function(vars(owner)[name])


def _function(value: Any) -> Any:
    """The function in an attribute; None where there is none."""
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return value if inspect.isfunction(value) else None


def commands(contract: Contract, case: str = "") -> tuple[str, str]:
    """The command line that judges the reference, and the one that tries the mutants."""
    item = f"{contract.id}[{case}]" if case else contract.id
    check, selftest = ["rankproof", "check", "--stack", "reference"], ["rankproof", "selftest"]
    if contract.tier != "unit":
        selftest += ["--profile", contract.tier]
    if contract.tier == "dist":
        check += ["--ranks", str(_most(contract, (case,) if case else contract.asked))]
        selftest += ["--ranks", str(_most(contract, [each.case for each in LAW.mutants_of(contract.id)]))]
    return shlex.join([*check, "--profile", item]), shlex.join([*selftest, "--only", contract.id])


def _most(contract: Contract, cases: Collection[str]) -> int:
    return max(2, *(contract.ranks(each) for each in cases))

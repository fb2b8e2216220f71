"""The contracts as tests of a project's own: what `parametrize_with_contracts` asks of pytest."""

from collections import Counter
from pathlib import Path

import pytest

from contracts.contract import LAW
from contracts.court import profiles
from contracts.court.profiles import ONE_PROCESS
from contracts.harness import parties
from contracts.harness.families import read_checks
from contracts.harness.gate import Gate
from contracts.harness.promise import Promise, assistants_of, deadline_of, deviations_of, without_torch
from contracts.spec import Party, Refusals, Refused, Unreachable, abilities_of, refuse
from rankproof import options


def parametrize(
    metafunc: pytest.Metafunc, stacks: tuple[Party, ...], profile: str | None, deviations: Path | None
) -> None:
    """Give a test function each planned case of one process, for each stack.

    Raises:
        CollectError: for stacks, a profile or deviations that cannot be judged, with every fault.
    """
    config = metafunc.config
    chosen = profile or options.setting(config, "profile") or ONE_PROCESS
    declared = deviations or options.setting(config, "deviations")
    each = []
    read_checks(*profiles.beginnings(chosen))
    try:
        _distinct(stacks)
        seconds, known = deadline_of(config), deviations_of(declared)
        for stack in stacks:
            plan = profiles.plan(LAW, chosen, abilities_of(stack))
            gate = Gate(
                subject=stack, origin=f"{type(stack).__module__}:{type(stack).__name__}", profile=chosen, plan=plan,
                assistants=assistants_of(config, stack, quick=True), deviations=known, deadline_s=seconds,
            )  # fmt: skip
            named = f"{stack.name}-" if len(stacks) > 1 else ""
            for item in plan.items:
                contract = LAW.contracts.get(item.id)
                if contract is not None and contract.tier == "unit":
                    marks = without_torch() if contract.of_numbers else ()
                    each.append(pytest.param(Promise(gate, item), marks=marks, id=f"{named}{item.id}-{item.case}"))
        if not each:  # pytest would skip the test, which is green
            raise refuse("profile", chosen, "has no contract of one process", "name one that has, or leave it out")
    except (Refused, Unreachable) as error:
        raise pytest.Collector.CollectError(str(error)) from None
    metafunc.parametrize(options.ARGUMENT, each)


def _distinct(stacks: tuple[Party, ...]) -> None:
    found = Refusals()
    for number, stack in enumerate(stacks):
        parties.introduced(f"stacks[{number}]", stack)
    for name, times in Counter(stack.name for stack in stacks).items():
        found.unless(times == 1, "stacks", name, f"is the name of {times} stacks", "give each a name of its own")
    found.unless(bool(stacks), "stacks", [], "has no stack", "give at least one, such as [Ours()]")
    found.raise_any()

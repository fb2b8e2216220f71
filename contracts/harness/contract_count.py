"""How many planned contracts a stack can be judged by, for the Makefile.

`python -m contracts.harness.contract_count STACK PROFILE` prints the number.

A tier that would judge nothing need not be started.
"""

import sys

from contracts.contract import LAW, Law
from contracts.court import profiles
from contracts.harness import parties
from contracts.harness.commands._errors import told
from contracts.harness.families import read_checks
from contracts.spec import Party, abilities_of


def contract_count(law: Law, profile: str, subject: Party) -> int:
    """How many contracts of a profile ask for something that the subject itself offers, in a case that its abilities
    allow."""
    abilities = abilities_of(subject)
    plan = profiles.plan(law, profile, abilities)
    found = set()
    for item in plan.items:
        contract = law.contracts.get(item.id)
        if contract is None or not set(contract.asks) & subject.offers:
            continue
        if abilities is None or abilities.absence(contract.features(item.case), contract.asks) is None:
            found.add(item.id)
    return len(found)


def main(stack: str, profile: str) -> int:
    read_checks(*profiles.beginnings(profile))
    sys.stdout.write(f"{contract_count(LAW, profile, parties.load(stack))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(told(lambda: main(*sys.argv[1:3])))

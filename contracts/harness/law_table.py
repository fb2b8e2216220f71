"""The table of all contracts: id, statement, tier, number of cases, mutants, state.

It is generated and kept as a snapshot, so that a review sees a change of the contracts as a change of one table.
"""

from contracts.contract import Contract, Law, Untested


def contents(law: Law) -> str:
    """All contracts as Markdown, one table for each family."""
    entries: dict[str, list[Contract | Untested]] = {}
    every: list[Contract | Untested] = [*law.contracts.values(), *law.untested.values()]
    for entry in every:
        entries.setdefault(entry.family, []).append(entry)
    tested, untested, mutants = len(law.contracts), len(law.untested), len(law.mutants)
    lines = [
        "# The contracts",
        "",
        f"{tested} contracts with a check, {mutants} mutants, {untested} contracts without a check.",
    ]
    for family, members in entries.items():
        lines += [
            "",
            f"## {family}",
            "",
            "| id | statement | tier | cases | mutants | state |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(law, entry) for entry in sorted(members, key=lambda each: each.id)]
    return "\n".join(lines) + "\n"


def _row(law: Law, entry: Contract | Untested) -> str:
    promise = entry.promise.replace("|", "\\|")
    if isinstance(entry, Untested):
        return f"| {entry.id} | {promise} | {entry.tier} | | | untested: {entry.why} |"
    mutants = ", ".join(mutant.name for mutant in law.mutants_of(entry.id))
    return f"| {entry.id} | {promise} | {entry.tier} | {len(entry.cases)} | {mutants} | judged |"

"""`rankproof`: check a stack, begin an adapter for one, list and explain contracts, emit a launch, replay a recorded
run, test the suite itself.

Exit codes: 0 conformant, 1 violated, 2 usage, 3 incomplete, 4 broken, 5 nothing ran.
"""

from __future__ import annotations

import os
import sys

import click

from contracts.harness.commands import (
    capacity,
    check,
    compare,
    coverage,
    deviations,
    emit,
    init,
    installation,
    launch,
    law,
    observe,
    preflight,
    runs,
    selftest,
    storage,
    traffic,
    triage,
)
from contracts.harness.commands._errors import told
from contracts.harness.gate import suite_version
from contracts.spec import former_name


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(suite_version(), prog_name="rankproof")
def main() -> None:
    """The conformance suite that gates merges to hybrid LLM training stacks."""
    if code := told(lambda: former_name.refuse_variables(os.environ)):
        sys.exit(code)


for command in (
    check.check,
    selftest.selftest,
    init.init,
    law.list_,
    law.explain,
    emit.emit,
    capacity.budget,
    capacity.kernels,
    traffic.traffic,
    launch.launch,
    compare.compare,
    observe.observe,
    observe.diff,
    observe.judge,
    runs.report,
    runs.replay,
    deviations.deviations,
    coverage.coverage,
    preflight.preflight,
    triage.triage,
    triage.goodput,
    installation.stack,
    installation.check_install_plan,
    storage.check_storage,
):
    main.add_command(command)

if __name__ == "__main__":  # for `python -m`, where an interpreter is named by its path and its scripts lie elsewhere
    main()

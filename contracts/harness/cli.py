"""`rankproof`: check a stack, begin an adapter for one, list and explain contracts, emit a launch, replay a recorded
run, test the suite itself.

Exit codes: 0 conformant, 1 violated, 2 usage, 3 incomplete, 4 broken, 5 nothing ran.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import get_completion_class

from contracts.harness.commands import (
    capacity,
    check,
    compare,
    coverage,
    deviations,
    emit,
    gate,
    init,
    installation,
    launch,
    law,
    observe,
    preflight,
    runs,
    samples,
    selftest,
    storage,
    traffic,
    triage,
)
from contracts.harness.commands._errors import told
from contracts.harness.gate import suite_version
from contracts.spec import former_name


class Grouped(click.Group):
    """A group whose help shows its commands by what they are for."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                longest = max(len(name) for name in self.commands)
                limit = formatter.width - longest - 6
                formatter.write_dl(
                    [(f"{each.name:<{longest}}", each.get_short_help_str(limit)) for each in group]  # all in one column
                )


@click.group(
    cls=Grouped,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 conformant, 1 violated or refused, 2 usage, 3 incomplete, 4 broken, 5 nothing ran; "
    "docs/gate.md has them command by command.",
)
@click.version_option(suite_version(), prog_name="rankproof")
@click.pass_context
def main(context: click.Context) -> None:
    """The conformance suite that gates merges to hybrid LLM training stacks.

    Start with `rankproof check`, or with `rankproof init NAME` for a stack of your own.
    """
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        context.color = False
    if code := told(lambda: former_name.refuse_variables(os.environ)):
        sys.exit(code)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options, stacks, recipes, ids and cases.

    For bash: `eval "$(rankproof completion bash)"` in ~/.bashrc.
    """
    made = get_completion_class(shell)
    assert made is not None  # click's own three
    click.echo(made(main, {}, "rankproof", "_RANKPROOF_COMPLETE").source())


GROUPS: dict[str, tuple[click.Command, ...]] = {
    "Judge a stack": (check.check, gate.gate, init.init, deviations.deviations, coverage.coverage),
    "Read records": (runs.report, runs.replay),
    "Look at the contracts": (law.list_, law.explain, selftest.selftest),
    "Plan a run": (emit.emit, capacity.budget, capacity.kernels, traffic.traffic),
    "On a node": (
        preflight.preflight, storage.check_storage, installation.stack, installation.check_install_plan, launch.launch,
    ),
    "Observe a training script": (observe.observe, observe.diff, observe.judge),
    "After a run": (compare.compare, triage.triage, triage.goodput),
    "Help": (completion, samples.sample),
}  # fmt: skip
for command in (each for group in GROUPS.values() for each in group):
    main.add_command(command)

if __name__ == "__main__":  # for `python -m`, where an interpreter is named by its path and its scripts lie elsewhere
    main()

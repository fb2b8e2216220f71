"""`rankproof`: check a stack, begin an adapter for one, list and explain contracts, emit a launch, replay a recorded
run, test the suite itself.

Exit codes: 0 conformant, 1 violated, 2 usage, 3 incomplete, 4 broken, 5 nothing ran.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

import click
from click.shell_completion import get_completion_class

from contracts.harness import law_release
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
from contracts.harness.gate import revision, suite_version
from contracts.spec import former_name


class Grouped(click.Group):
    """A group whose help shows its commands by what they are for, with examples."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(len(name) for name in self.commands)
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{longest}}", told) for name, (_, told) in group.items()])  # in one column
        with formatter.section("Examples"):
            formatter.write_dl(EXAMPLES, col_max=44)


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    try:
        torch = metadata.version("torch")  # importing it would take seconds
    except metadata.PackageNotFoundError:
        torch = "not installed"
    click.echo(
        f"rankproof {suite_version()}, revision {revision()}, law {law_release.names()[-1]}, torch {torch}, "
        f"Python {platform.python_version()}"
    )
    context.exit()


@click.group(
    cls=Grouped,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 conformant, 1 violated or refused, 2 usage, 3 incomplete, 4 broken, 5 nothing ran; "
    "docs/gate.md has them command by command.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
              help="Show the versions of rankproof, of the law and of torch, and exit.")  # fmt: skip
@click.pass_context
def main(context: click.Context) -> None:
    """The conformance suite that gates merges to hybrid LLM training stacks.

    Start with `rankproof observe` for a training script, or with `rankproof init NAME` for a stack of your own.
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


GROUPS: dict[str, dict[str, tuple[click.Command, str]]] = {
    "Judge a stack, by its answers": {
        "check": (check.check, "Put a stack under test and print the verdict."),
        "gate": (gate.gate, "Judge stacks of this repository, after a self-test."),
        "init": (init.init, "Write an adapter that answers nothing yet."),
        "deviations": (deviations.deviations, "Propose deviations for what a record found violated."),
        "coverage": (coverage.coverage, "Count what a stack answers, by family."),
    },
    "Observe a training script, without an adapter": {
        "observe": (observe.observe, "Run a script as it is, and record a trace."),
        "judge": (observe.judge, "Judge one trace: what every healthy run keeps."),
        "diff": (observe.diff, "Compare two traces: the first tensor that differs."),
        "show": (observe.show, "Print what is in a trace."),
    },
    "Read records of check, gate and judge": {
        "report": (runs.report, "Print a record in another form, or several as a page."),
        "merge": (runs.merge, "Make one record of the shares of `check --shard`."),
        "replay": (runs.replay, "Draw the verdict of a record again, without the stack."),
    },
    "Look at the contracts": {
        "list": (law.list_, "List the contracts of a profile, with their cases."),
        "explain": (law.explain, "Explain a contract: why, cases, time, mutants."),
        "selftest": (selftest.selftest, "Judge every mutant and print the kill matrix."),
    },
    "Plan a run": {
        "emit": (emit.emit, "Print command and environment that start a recipe."),
        "budget": (capacity.budget, "Estimate the memory of a recipe on each rank."),
        "kernels": (capacity.kernels, "Print which kernel would run on a device."),
        "traffic": (traffic.traffic, "Print what one rank sends in a step at full size."),
    },
    "On a node": {
        "preflight": (preflight.preflight, "Refuse a node that is not fit, with every reason."),
        "storage": (storage.check_storage, "Refuse places that lie where no state may lie."),
        "stack": (installation.stack, "Compare what is installed with a table, by line."),
        "install-plan": (installation.check_install_plan, "Ask pip what a plan installs; refuse to move torch."),
        "launch": (launch.launch, "Start a recipe, with preflight and a receipt."),
    },
    "After a run": {
        "compare": (compare.compare, "Compare two receipts: may the runs be compared?"),
        "triage": (triage.triage, "Say where to look first in the folder of a run."),
        "goodput": (triage.goodput, "Split the wall clock into parts."),
    },
    "Help": {
        "completion": (completion, "Print what completes commands in a shell."),
        "sample": (samples.sample, "Print a file to begin with."),
    },
}
"""Group → command → what its line says, in at most 54 characters: those of a terminal of 80 columns."""
EXAMPLES = [
    ("rankproof observe --out runs/a train.py", "your script as it is, one rank"),
    ("rankproof judge runs/a", "what is wrong with that run"),
    ("rankproof diff runs/a runs/b", "one rank and two; two commits"),
    ("rankproof check --stack ours:Ours", "your adapter, by its answers"),
    ("rankproof report reports/last --form json", "that verdict again"),
]
for command, _ in (each for group in GROUPS.values() for each in group.values()):
    main.add_command(command)

if __name__ == "__main__":  # for `python -m`: as the command, whatever escapes it is 4
    from rankproof.__main__ import main as guarded

    guarded()

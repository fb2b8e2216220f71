"""`rankproof`: check a stack, begin an adapter for one, list and explain contracts, emit a launch, replay a recorded
run, test the suite itself.

Exit codes: 0 conformant, 1 violated, 2 usage, 3 incomplete, 4 broken, 5 nothing ran.
"""

import os
import platform
import sys
from importlib import metadata

import click
from click.shell_completion import get_completion_class

from contracts.harness import law_release
from contracts.harness.commands._errors import told
from contracts.harness.gate import revision, suite_version
from contracts.spec import former_name


class Grouped(click.Group):
    """A group whose help shows its commands by what they are for, with examples. A command is imported when used."""

    def list_commands(self, ctx: click.Context | None = None) -> list[str]:
        return sorted(name for group in GROUPS.values() for name in group)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        for group in GROUPS.values():
            if cmd_name in group:
                found: click.Command = metadata.EntryPoint(cmd_name, group[cmd_name][0], "rankproof.commands").load()
                return found
        return None

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.list_commands()))
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
@click.option("--local-rank", "--local_rank", expose_value=False, hidden=True)  # `observe` hands it to its script
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


GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Judge a stack, by its answers": {
        "check": ("contracts.harness.commands.check:check", "Put a stack under test and print the verdict."),
        "gate": ("contracts.harness.commands.gate:gate", "Judge stacks of this repository, after a self-test."),
        "init": ("contracts.harness.commands.init:init", "Write an adapter that answers nothing yet."),
        "deviations": (
            "contracts.harness.commands.deviations:deviations",
            "Propose deviations for what a record found violated.",
        ),
        "coverage": ("contracts.harness.commands.coverage:coverage", "Count what a stack answers, by family."),
    },
    "Observe a training script, without an adapter": {
        "observe": ("contracts.harness.commands.observe:observe", "Run a script as it is, and record a trace."),
        "judge": ("contracts.harness.commands.observe:judge", "Judge one trace: what every healthy run keeps."),
        "diff": ("contracts.harness.commands.observe:diff", "Compare two traces: the first tensor that differs."),
        "show": ("contracts.harness.commands.observe:show", "Print what is in a trace."),
        "ab": ("contracts.harness.commands.ab:ab", "Run two commits, environments or layouts; compare."),
    },
    "Read records of check, gate and judge": {
        "report": ("contracts.harness.commands.runs:report", "Print a record in another form, or several as a page."),
        "merge": ("contracts.harness.commands.runs:merge", "Make one record of the shares of `check --shard`."),
        "replay": ("contracts.harness.commands.runs:replay", "Draw the verdict of a record again, without the stack."),
    },
    "Look at the contracts": {
        "list": ("contracts.harness.commands.law:list_", "List the contracts of a profile, with their cases."),
        "explain": ("contracts.harness.commands.law:explain", "Explain a contract: why, cases, time, mutants."),
        "selftest": ("contracts.harness.commands.selftest:selftest", "Judge every mutant and print the kill matrix."),
    },
    "Plan a run": {
        "emit": ("contracts.bringup.commands.emit:emit", "Print command and environment that start a recipe."),
        "budget": ("contracts.bringup.commands.capacity:budget", "Estimate the memory of a recipe on each rank."),
        "kernels": ("contracts.bringup.commands.capacity:kernels", "Print which kernel would run on a device."),
        "traffic": ("contracts.harness.commands.traffic:traffic", "Print what one rank sends in a step at full size."),
    },
    "On a node": {
        "preflight": (
            "contracts.bringup.commands.preflight:preflight",
            "Refuse a node that is not fit, with every reason.",
        ),
        "storage": (
            "contracts.bringup.commands.storage:check_storage",
            "Refuse places that lie where no state may lie.",
        ),
        "stack": ("contracts.bringup.commands.installation:stack", "Compare what is installed with a table, by line."),
        "install-plan": (
            "contracts.bringup.commands.installation:check_install_plan",
            "Ask pip what a plan installs; refuse to move torch.",
        ),
        "launch": ("contracts.bringup.commands.launch:launch", "Start a recipe, with preflight and a receipt."),
    },
    "After a run": {
        "compare": ("contracts.bringup.commands.compare:compare", "Compare two receipts: may the runs be compared?"),
        "triage": ("contracts.bringup.commands.triage:triage", "Say where to look first in the folder of a run."),
        "goodput": ("contracts.bringup.commands.triage:goodput", "Split the wall clock into parts."),
    },
    "Help": {
        "completion": (f"{__name__}:completion", "Print what completes commands in a shell."),
        "sample": ("contracts.harness.commands.samples:sample", "Print a file to begin with."),
    },
}
"""Group → command → where it is, as an entry point, and what its line says: at most 54 characters, those of a terminal
of 80 columns."""
EXAMPLES = [
    ("rankproof observe --out runs/a train.py", "your script as it is, one rank"),
    ("rankproof judge runs/a", "what is wrong with that run"),
    ("rankproof diff runs/a runs/b", "one rank and two; two commits"),
    ("rankproof check --stack ours:Ours", "your adapter, by its answers"),
    ("rankproof report reports/last --form json", "that verdict again"),
]

if __name__ == "__main__":  # for `python -m`: as the command, whatever escapes it is 4
    from rankproof.__main__ import main as guarded

    guarded()

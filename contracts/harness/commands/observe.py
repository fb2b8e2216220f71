"""`observe`, `diff` and `judge`: record a training script, compare two recordings, judge one."""

import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import click

from contracts.court import deviations as deviations_file
from contracts.court import report
from contracts.court.party import Broken
from contracts.court.plain_text import terminal
from contracts.harness.commands._errors import (
    AS_JSON,
    VERBOSE,
    one_clear_error,
    print_report,
    terminal_width,
    told,
)
from contracts.harness.commands.check import not_empty
from contracts.observe.entry import Script
from contracts.observe.started import Options
from contracts.spec import Refusal, Refused, launchers, refuse
from contracts.spec.records import EXIT_CODES, FORMS, Form

LIKE = ("one-rank", "whole", "plain")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
              help="A new folder for the trace, which all ranks share.")  # fmt: skip
@click.option("--steps", type=int, default=3, show_default=True, metavar="N",
              help="How many optimizer steps are observed; the script continues unobserved.")  # fmt: skip
@click.option("--perturb", type=int, metavar="SEED",
              help="Move each weight by one unit in its last place before the first step, for --repeat.")  # fmt: skip
@click.option("--collectives/--no-collectives", default=True, show_default=True,
              help="Whether collectives are recorded.")  # fmt: skip
@click.option("--keep-weights", "keep", is_flag=True,
              help="Write the first weights whole, so that another run can begin with them.")  # fmt: skip
@click.option("--weights-from", "lender", type=click.Path(path_type=Path), metavar="DIR",
              help="Begin with the weights of that trace, recorded with --keep-weights.")  # fmt: skip
@click.option("--full", multiple=True, metavar="GLOB",
              help="Write weights and gradients of these names whole, as 'layers.1.*'; may be repeated.")  # fmt: skip
@click.option("--on-cpu", "stack", type=click.Choice(["cuda", "megatron", "torchtitan"]), metavar="KIND",
              help="Run on this CPU what knows only accelerators: cuda (anything), megatron, torchtitan.")  # fmt: skip
@click.option("--stop", "stops", is_flag=True, help="End the script after those steps.")
@click.option("--started", is_flag=True, hidden=True, help="A rank of the run has started this one.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def observe(
    out: Path, steps: int, perturb: int | None, collectives: bool, keep: bool, lender: Path | None,
    full: tuple[str, ...], stack: str | None, stops: bool, started: bool, module: bool, script: str,
    arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a training script and record what it does. Not a line of it changes.

    Under torchrun: torchrun --no-python --nproc-per-node 4 rankproof observe --out DIR train.py …
    """
    # torch.distributed.launch and deepspeed put it in front of what they are given for the script
    placed = [each for each in sys.argv[1:2] if each.startswith(("--local-rank=", "--local_rank="))]
    prepared = Script((script, *placed, *arguments), module=module)

    with ExitStack() as shimmed:

        def begin() -> None:
            from contracts.stacks.script_on_cpu import on_cpu  # a self-test forks before anything of stacks is imported

            shims = shimmed.enter_context(on_cpu(stack)) if stack else ""
            prepared.observe(Options(
                out=out, steps=steps, perturb=perturb, collectives=collectives, shims=shims, keep=keep, full=full,
                lender=lender, stack=stack, stops=stops, started=started,
            ))  # fmt: skip

        if code := told(begin):
            sys.exit(code)
        try:
            prepared.run()  # whatever ends it ends this command
            if os.environ.get("RANK", "0") == "0" and not started:
                click.echo(f"rankproof: observed; what is wrong with it: rankproof judge {out}", err=True)
        except Exception:  # as of a script alone: click has other words for some, and not where they were raised
            sys.excepthook(*sys.exc_info())
            sys.exit(1)
        except KeyboardInterrupt:
            sys.excepthook(*sys.exc_info())
            sys.exit(130)


def pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if wrong := [each for each in given if "=" not in each]:
        raise click.BadParameter(f"{', '.join(wrong)}: has no =; give A=B", param=parameter)
    return tuple((each.partition("=")[0], each.partition("=")[2]) for each in given)


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option("--repeat", "repeats", type=click.Path(path_type=Path), multiple=True, metavar="DIR",
              help="A trace of the reference run under --perturb, to measure rounding; may be repeated.")  # fmt: skip
@click.option("--behind", type=click.IntRange(min=0), default=0, metavar="N",
              help="OTHER resumes after step N of REFERENCE: compare its first step with step N + 1.")  # fmt: skip
@click.option("--from-step", "first", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Leave out the steps before step N of both runs.")  # fmt: skip
@click.option("--rename", "renames", multiple=True, metavar="A=B", callback=pairs,
              help="Pair A, or names that begin with A, of REFERENCE with B of OTHER; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@one_clear_error
def diff(
    reference: Path, other: Path, repeats: tuple[Path, ...], behind: int, first: int,
    renames: tuple[tuple[str, str], ...], as_json: bool,
) -> None:  # fmt: skip
    """Compare two traces: the first tensor that differs, in the order of computation.

    Exit codes: 0 equal up to rounding, 1 different, 3 not comparable.
    """
    from contracts.observe import power
    from contracts.observe.diff import as_fields, compare, lines  # torch, which `rankproof --help` does not need
    from contracts.observe.merged import Merged
    from contracts.observe.pairing import renamed
    from contracts.observe.trace import read

    one, two = read(reference), read(other)
    two = renamed(two, renames, one) if renames else two
    if blind := power.lost():
        raise Broken(f"this process would not see a difference, so that its answer would say nothing: {blind}")
    behind += first - 1
    whole, again = Merged(one, behind), [Merged(read(each), behind) for each in repeats]
    found = compare(whole, Merged(two, first - 1), again)
    if as_json:
        click.echo(json.dumps(as_fields(found), indent=2))
    for line in () if as_json else lines(found, (str(reference), str(other))):
        click.echo(terminal(line))
    sys.exit(EXIT_CODES["incomplete"] if found.incomparable else int(bool(found.differences)))


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="Each parameter of step N too.")
@one_clear_error
def show(trace: Path, step: int | None) -> None:
    """Print what is in a trace: ranks, models, steps, and what was not seen."""
    from contracts.observe.shown import shown
    from contracts.observe.trace import read

    for line in shown(read(trace), step):
        click.echo(terminal(line))


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--deviations", type=click.Path(path_type=Path), help="TOML file of declared deviations.")
@click.option("--report", "folder", type=click.Path(path_type=Path, file_okay=False),
              help="Folder for the record and its renderings; without it a new one for temporary files.")  # fmt: skip
@click.option("--form", type=click.Choice(FORMS), default="terminal", show_default=True, help="What is printed.")
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@click.option("--profile", default="OBS", show_default=True, callback=not_empty,
              help="Ids, prefixes and single cases of OBS, as for `check`.")  # fmt: skip
@click.option("--like", multiple=True, type=(click.Choice(LIKE), click.Path(path_type=Path)), metavar="KIND DIR",
              help="A trace that TRACE must equal: one-rank, whole (which it resumes) or plain.")  # fmt: skip
@one_clear_error
def judge(
    trace: Path, deviations: Path | None, folder: Path | None, form: Form, as_json: bool, verbose: bool, profile: str,
    like: tuple[tuple[str, Path], ...],
) -> None:  # fmt: skip
    """Judge one trace: what every healthy training run keeps. Exit codes as of `check`."""
    from contracts.harness.judged_trace import judged
    from contracts.observe.trace import read

    launchers.leave(os.environ)
    form = "json" if as_json else form
    refusals: list[Refusal] = []
    for kind, count in Counter(kind for kind, _ in like).items():
        if count > 1:
            refusals += refuse("like", kind, f"is given {count} times", "give one trace of a kind").refusals
    for each in (trace, *(path for _, path in like)):
        try:
            read(each)
        except Refused as error:
            refusals += error.refusals
    if refusals:
        raise Refused(refusals)
    found = read(trace)
    declared = deviations_file.load(deviations) if deviations is not None else ()
    folder = folder or Path(tempfile.mkdtemp(prefix="rankproof-judge-"))
    run, verdict = judged(found, folder, profile=profile, like=dict(like), deviations=declared)
    if form == "terminal":
        unseen: Counter[str] = Counter()
        for rank in found.ranks:
            unseen.update((rank.end or {}).get("unseen", {}))
        for what, count in sorted(unseen.items()):
            click.echo(terminal(f"unseen: {count} × {what}"))
        click.echo(f"report: {folder / 'report.html'}")
    print_report(report.render(run, verdict, form, verbose, terminal_width()), verdict.word, form)
    sys.exit(verdict.exit_code)

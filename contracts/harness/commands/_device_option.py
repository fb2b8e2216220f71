"""The option that says on which device a stack is asked to compute."""

import os

import click

from contracts.court.device import CHOICES, VARIABLE, chosen, count


def _choose(context: click.Context, parameter: click.Parameter, said: str | None) -> None:
    """Every process of the run reads the variable: workers, ranks, interpreters."""
    if said is not None:
        os.environ[VARIABLE] = said


def say_default(*, numbers: bool) -> None:
    """Say where a run about numbers computes if nothing was chosen, on a node that has devices."""
    devices = count() if numbers and chosen() == "auto" else 0
    if devices:
        here = f"{devices} CUDA device{'' if devices == 1 else 's'} here"
        click.echo(f"{here}: the unit tier computes on the CPU, the gpu tier on CUDA (--device)", err=True)


on_device = click.option(
    "--device", type=click.Choice(CHOICES), expose_value=False, callback=_choose, is_eager=True,
    help="Where the stack computes. auto: the unit tier on the CPU, the gpu tier on CUDA, ranks on CUDA if each has "
         f"a device. [default: {VARIABLE}, or auto]",
)  # fmt: skip

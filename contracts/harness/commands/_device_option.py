"""The option that says on which device a stack is asked to compute."""

from __future__ import annotations

import os

import click

from contracts.court.device import CHOICES, VARIABLE


def _choose(context: click.Context, parameter: click.Parameter, said: str | None) -> None:
    """Every process of the run reads the variable: workers, ranks, interpreters."""
    if said is not None:
        os.environ[VARIABLE] = said


on_device = click.option(
    "--device", type=click.Choice(CHOICES), expose_value=False, callback=_choose, is_eager=True,
    help="Where the stack computes. auto: the unit tier on the CPU, the gpu tier on CUDA, ranks on CUDA if each has "
         f"a device. [default: {VARIABLE}, or auto]",
)  # fmt: skip

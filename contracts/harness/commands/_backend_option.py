"""The option that says what carries the tensors of the ranks that `check` starts."""

import os

import click

from contracts.court import device
from contracts.spec import refuse

CHOICES = ("auto", "gloo", "nccl", "staged")

over_backend = click.option(
    "--dist-backend", "backend", type=click.Choice(CHOICES), default="auto", show_default=True,
    help="With --ranks, what carries tensors. auto: nccl if each rank has a device; staged, through host memory, if "
         "there are fewer devices; gloo if there is none.",
)  # fmt: skip


def settle(backend: str, ranks: int | None) -> str:
    """The backend of so many ranks of this machine, said at once where ranks share devices. They compute on these,
    unless a device is chosen.

    Raises:
        Refused: where it needs ranks, or more devices.
    """
    if ranks is None:
        if backend != "auto":
            raise refuse("dist-backend", backend, "carries tensors between ranks", "give --ranks too, or leave it out")
        return backend
    from contracts.ranks.groups import backend_of  # brings pytest

    if backend == "auto" and device.chosen() == "cpu":
        backend = "gloo"
    try:
        found = backend_of(backend, ranks)
    except ValueError as error:
        problem, _, remedy = str(error).partition(": ")
        raise refuse("dist-backend", backend, problem, remedy) from None
    if found.words:  # ranks share devices, or stage tensors
        click.echo(found.words, err=True)
        if device.chosen() == "auto" and device.count():
            os.environ[device.VARIABLE] = "cuda"
    return found.name

"""`ab`: two sides of a training script, run, judged and compared by one command."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contracts.court.plain_text import terminal
from contracts.harness.child_process import stoppable
from contracts.harness.commands._errors import AS_JSON, told, whoever_listens
from contracts.harness.commands.observe import pairs
from contracts.observe.started import Options
from contracts.spec import launchers
from contracts.spec.redaction import redact, secrets_here

if TYPE_CHECKING:
    from contracts.harness.ab.answer import Answer

ENDINGS = {"terminal": "txt", "markdown": "md", "json": "json", "html": "html"}
GRACE_S = 20.0


def _texts(answer: Answer) -> dict[str, str]:
    """The answer in every form."""
    from contracts.harness.ab import answer as answers
    from contracts.harness.ab.page import page

    text = "".join(f"{each}\n" for each in answers.lines(answer))
    of = {"markdown": answers.comment, "json": answers.as_json, "html": page}
    return {"terminal": text, **{name: made(answer) for name, made in of.items()}}


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--base", metavar="REV", help="Compare with this commit of the repository.")
@click.option("--head", metavar="REV", help="The head: this commit, instead of the working tree.")
@click.option("--env", "envs", multiple=True, metavar="PYTHON",
              help="Compare two environments, by interpreter or folder; given twice.")  # fmt: skip
@click.option("--layout", is_flag=True, help="Compare with one rank.")
@click.option("--reference", metavar="COMMAND", help="The command of the one rank, if torchrun does not start it.")
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="How many optimizer steps are observed; the script ends then.")  # fmt: skip
@click.option("--same-weights", "lent", is_flag=True, help="Begin both with the base's weights in any case.")
@click.option("--from-step", "first", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Leave out the steps before step N of both runs.")  # fmt: skip
@click.option("--rename", "renames", multiple=True, metavar="A=B", callback=pairs,
              help="Pair A, or names that begin with A, of the base with B of the head; may be repeated.")  # fmt: skip
@click.option("--link", "links", multiple=True, metavar="PATH",
              help="A path that git ignores and the script reads, linked into each checkout; repeatable.")  # fmt: skip
@click.option("--bisect", is_flag=True, help="Exit codes for `git bisect run`: 125 in place of 3.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="A new folder for traces and answers; without it one for temporary files.")  # fmt: skip
@click.option("--form", type=click.Choice([*ENDINGS]), default="terminal", show_default=True, help="What is printed.")
@click.option("--json", "as_json", is_flag=True, help=AS_JSON)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
def ab(
    base: str | None, head: str | None, envs: tuple[str, ...], layout: bool, reference: str | None, steps: int,
    lent: bool, first: int, renames: tuple[tuple[str, str], ...], links: tuple[str, ...], bisect: bool,
    out: Path | None, form: str, as_json: bool, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run two sides of a training script, and name the first tensor that differs, with its file and line.

    rankproof ab --base main -- torchrun --nproc-per-node 2 train.py --steps 3

    Exit codes: 0 equal, 1 different, 3 not comparable, or a side could not be observed.
    """
    from contracts.harness.ab import answer as answers  # torch, which `rankproof --help` does not need
    from contracts.harness.ab.sides import Asked, sides
    from contracts.harness.ab.trial import Trial

    asked = Asked(
        words=words, base=base, head=head, envs=envs, layout=layout, reference=reference, links=links, out=out
    )
    form = "json" if as_json else form
    launchers.leave(os.environ)

    def answered() -> int:
        with ExitStack() as kept:
            stop = kept.enter_context(stoppable(GRACE_S))
            lib = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="rankproof-suite-")), "lib")
            both = sides(asked, lib)
            folder = out or Path(tempfile.mkdtemp(prefix="rankproof-ab-"))
            folder.mkdir(parents=True, exist_ok=True)
            trial = Trial(
                sides=both, folder=folder.resolve(), kept=kept, stop=stop, links=links, renames=renames, first=first,
                options=Options(out=folder, steps=first - 1 + steps, stops=True), lent=lent, several=layout,
            )  # fmt: skip
            answer = answers.Answer(kind=asked.kind, sides=both, found=trial.found(), folder=folder)
        known = secrets_here(os.environ, sys.argv)
        texts = {name: redact(text, known) for name, text in _texts(answer).items()}
        for name, text in texts.items():
            (folder / f"ab.{ENDINGS[name]}").write_text(text, encoding="utf-8")
        with whoever_listens():
            click.echo(terminal(texts[form]) if form == "terminal" else texts[form], nl=False)
        return answers.END if bisect and answer.without_base else answer.exit_code

    try:
        code = told(answered)
    except Exception:
        if not bisect:
            raise
        traceback.print_exc()
        code = answers.END
    sys.exit(answers.of_bisect(code) if bisect else code)

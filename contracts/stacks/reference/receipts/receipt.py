"""What the reference writes about a run: built from what a launcher saw, redacted, written and read back.

The schema under `docs/schema/` is written by
`python -m contracts.stacks.reference.receipts.receipt docs/schema/receipt-1.json`.
"""

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contracts.instruments.atomic_write import write_whole
from contracts.spec import RECORDED_PREFIXES, Refusals, codec, former_name, refuse
from contracts.spec.receipt import (
    SCHEMA,
    Comparison,
    EffectiveLane,
    Environment,
    Figures,
    LaunchedRun,
    Peak,
    Receipt,
    ReportedStep,
    Weight,
    WeightCount,
    Window,
    Witness,
    Work,
)
from contracts.spec.redaction import redact, redact_variable, redact_words, secrets_in, secrets_of
from contracts.stacks.reference.receipts import comparison, metrics

ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch reads the first; the second is its older alias and counts where the first is not set."""


class ReceiptAnswers:
    """The answers of `Reference` on this subject."""

    def receipt(self, facts: LaunchedRun) -> Receipt:
        return build(facts)

    def write_receipt(self, receipt: Receipt) -> str:
        return write(receipt)

    def read_receipt(self, text: str) -> Receipt:
        return read(text)

    def publish_receipt(self, receipt: Receipt, path: str) -> str:
        write_whole(Path(path), self.write_receipt(receipt))
        return path

    def compare(self, base: Receipt, candidate: Receipt) -> Comparison:
        return comparison.compare(base, candidate)

    def figures(self, work: Work) -> Figures:
        return metrics.figures(work)

    def count_weights(self, weights: tuple[Weight, ...], experts: int, top_k: int) -> WeightCount:
        return metrics.count_weights(weights, experts, top_k)


def build(facts: LaunchedRun) -> Receipt:
    """The receipt of a run.

    Raises:
        Refused: for facts that describe no run: provenance that was taken too late, a backend that was replaced
            without a reason.
    """
    _refuse_what_proves_nothing(facts)
    measured = window(facts.steps, facts.warmup, facts.bounded)
    seen = witness(facts.steps)
    inside = facts.steps[facts.warmup : facts.warmup + facts.bounded]
    withheld = _why_withheld(inside, measured, seen)
    receipt = Receipt(
        schema=SCHEMA,
        run=facts.lane.run,
        started=facts.started,
        finished=facts.finished,
        ending=facts.ending,
        exit_code=facts.exit_code,
        failure=facts.failure,
        provenance=facts.provenance,
        preflight=facts.preflight,
        environment=environment(facts),
        lane=effective_lane(facts),
        command=facts.launch.command,
        places=facts.places,
        window=measured,
        witness=seen,
        tokens_per_second=None if withheld or measured is None else measured.tokens / float(measured.seconds),
        withheld=withheld,
        peak=Peak(
            allocated=max(each.allocated for each in facts.memory), reserved=max(each.reserved for each in facts.memory)
        )
        if facts.memory
        else None,
        backends=facts.backends,
    )
    known = secrets_of(facts.lane.inherited) | secrets_of(facts.launch.env) | secrets_of(facts.lane.overrides)
    return without_secrets(receipt, known | secrets_in(facts.launch.command))


def _refuse_what_proves_nothing(facts: LaunchedRun) -> None:
    found = Refusals()
    loaded = facts.provenance.loaded
    found.unless(not loaded, "provenance.loaded", loaded, "were imported before the provenance was taken",
                 "take it before the first heavy import")  # fmt: skip
    for backend in facts.backends:
        found.unless(backend.actual == backend.requested or bool(backend.reason), f"backends.{backend.part}",
                     backend.actual, f"ran instead of {backend.requested} and nothing says why",
                     "give the reason")  # fmt: skip
    found.raise_any()


def environment(facts: LaunchedRun) -> Environment:
    """What reached the ranks, of the recorded prefixes and the lane's own variables."""
    launch = facts.launch
    kept = {name: value for name, value in facts.lane.inherited.items() if name not in launch.unset}
    reached = {**kept, **launch.env}
    allocator = next(((name, reached[name]) for name in ALLOCATOR_NAMES if name in reached), None)
    return Environment(
        overlay=dict(launch.env),
        unset=launch.unset,
        reached={
            name: value
            for name, value in sorted(reached.items())
            if name.startswith(RECORDED_PREFIXES) or name in launch.env
        },
        allocator=allocator,
    )


def effective_lane(facts: LaunchedRun) -> EffectiveLane:
    """What the launch settled on: its degrees, not those that were asked for."""
    recipe, lane, launch = facts.recipe, facts.lane, facts.launch
    return EffectiveLane(
        preset=recipe.name or None,
        family=recipe.family or None,
        mode=lane.mode,
        regime=lane.regime,
        compile=lane.compile,
        degrees=launch.degrees,
        world=launch.world,
        launcher=launch.launcher,
        launcher_version=launch.launcher_version,
        overrides=dict(lane.overrides),
        gives_up=launch.gives_up,
    )


def window(steps: tuple[ReportedStep, ...], warmup: int, bounded: int) -> Window | None:
    """The first `bounded` steps after the first `warmup` of them; None when none is left."""
    measured = steps[warmup : warmup + bounded]
    if not measured:
        return None
    seconds = sum(float(step.seconds) for step in measured)
    return Window(
        first=measured[0].number,
        last=measured[-1].number,
        steps=len(measured),
        dropped=warmup,
        tokens=sum(step.tokens for step in measured),
        seconds=figure(seconds),
    )


def witness(steps: tuple[ReportedStep, ...]) -> Witness | None:
    """Whether the run trained, by its own steps; None when it reported none."""
    if not steps:
        return None
    trained = [step for step in steps if not step.skipped]
    return Witness(
        steps=len(trained),
        skipped=len(steps) - len(trained),
        finite_losses=all(_finite(step.loss) for step in trained),
        finite_gradients=all(_finite(step.grad_norm) for step in trained),
        first_loss=steps[0].loss,
        last_loss=steps[-1].loss,
    )


def _why_withheld(inside: tuple[ReportedStep, ...], measured: Window | None, seen: Witness | None) -> str | None:
    """Why there is no throughput, or None when there may be one. `inside` are the steps of the window."""
    if seen is None or measured is None:
        return "no step ran after the warm-up"
    if any(step.skipped for step in inside):
        return "a step of the window was skipped and updated no weight"
    if not seen.finite_losses:
        return "a loss was not finite, or not measured"
    if not seen.finite_gradients:
        return "a gradient norm was not finite, or not measured"
    if not _finite(measured.seconds) or float(measured.seconds) <= 0:
        return f"the window took {measured.seconds} seconds"
    return None


def without_secrets(receipt: Receipt, known: Iterable[str]) -> Receipt:
    """The receipt with every text in it redacted: no field has to be remembered."""
    known = tuple(known)
    clean = _walk(codec.encode(receipt), known)
    clean |= {"schema": receipt.schema, "ending": receipt.ending, "command": redact_words(receipt.command, known)}
    for kind in ("overlay", "reached"):
        named = getattr(receipt.environment, kind)
        clean["environment"][kind] = {name: redact_variable(name, value, known) for name, value in named.items()}
    clean["lane"]["overrides"] = {
        name: redact_variable(name, value, known) for name, value in receipt.lane.overrides.items()
    }
    return codec.decode(Receipt, codec.encode(clean))


def _walk(value: Any, known: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, known) for item in value]
    return redact(value, known) if isinstance(value, str) else value


def write(receipt: Receipt) -> str:
    """The receipt as text, one JSON object that a person can read.

    Raises:
        Refused: for a figure without its witness.
    """
    _refuse_bare_figures(receipt)
    return json.dumps(codec.encode(receipt), indent=1, allow_nan=False) + "\n"


def read(text: str) -> Receipt:
    """A receipt read back.

    Raises:
        Refused: for text that is not one whole receipt of this schema, and for a figure without its witness.
    """
    known = _object(text)
    version = known["schema"] = former_name.current(known.get("schema"))
    if version != SCHEMA:
        raise refuse("receipt.schema", version, f"is not {SCHEMA}", "read it with the version that wrote it")
    receipt = codec.decode(Receipt, known, name="receipt")
    _refuse_bare_figures(receipt)
    return receipt


def _object(text: str) -> dict[str, Any]:
    value: Any = codec.loads(object, text, name="receipt")
    if not isinstance(value, dict):
        raise refuse("receipt", value, "is not an object", "give a receipt of this schema")
    return value


def _refuse_bare_figures(receipt: Receipt) -> None:
    """A throughput stands only beside a witness of finite losses and gradients and steps that ran."""
    if receipt.tokens_per_second is None:
        return
    seen, found = receipt.witness, Refusals()
    name, value = "tokens_per_second", receipt.tokens_per_second
    remedy = "withhold the figure and say why"
    trained = seen is not None and seen.steps > 0 and receipt.window is not None and receipt.window.steps > 0
    found.unless(trained, name, value, "no step witnesses it", remedy)
    if seen is not None:
        found.unless(seen.finite_losses, name, value, "losses were not all finite", remedy)
        found.unless(seen.finite_gradients, name, value, "gradients were not all finite", remedy)
    found.raise_any()


def _finite(figure: float | str | None) -> bool:
    return figure is not None and math.isfinite(float(figure))


def figure(number: float) -> Any:
    """A number as a `Figure`: JSON has no NaN and no infinity, and a receipt has their names."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def schema_text() -> str:
    """The JSON Schema of a receipt, as the checked-in file holds it."""
    return codec.laid_out({"title": f"A {SCHEMA} receipt", **codec.schema(Receipt)}) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m contracts.stacks.reference.receipts.receipt FILE")
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")

"""What is in a trace, in lines for a reader."""

import math
from collections import Counter
from collections.abc import Iterator

from contracts.observe.merged import Merged
from contracts.observe.trace import Trace

_LOOKED_AT = 5


def shown(trace: Trace, step: int | None = None) -> Iterator[str]:
    """A trace in lines; `step` has each parameter of that step too."""
    begin, merged = trace.ranks[0].begin, Merged(trace)
    yield f"{' '.join(begin['command'])}: {merged.steps} steps on {trace.world} ranks, torch {begin.get('torch', '?')}"
    for rank in trace.ranks:
        if rank.end is None or rank.end["error"] or rank.end["full"]:
            why = "died" if rank.end is None else rank.end["error"] or "reached the limit of its trace"
            yield f"rank {rank.rank}: {why}"
    if trace.missing:
        yield f"without a trace: ranks {', '.join(map(str, trace.missing))}"
    for rank, line in merged.lines("root"):
        if rank.rank == trace.ranks[0].rank:
            more = f"parameters, replicas {line['replicas']}" if line["replicas"] else "parameters"
            yield f"model {line['type']}: {len(line['trainable'])} trainable, {len(line['frozen'])} frozen {more}"
    for number in range(1, merged.steps + 1):
        yield f"step {number}: {', '.join(_of_step(merged, number))}"
    if step is not None:
        yield from _parameters(merged, step)
    unseen: Counter[str] = Counter()
    for rank in trace.ranks:
        unseen.update((rank.end or {}).get("unseen", {}))
    yield from (f"unseen: {count} × {what}" for what, count in sorted(unseen.items()))


def _of_step(merged: Merged, step: int) -> Iterator[str]:
    passes = Counter(rank.rank for rank, _ in merged.lines("input", step))
    yield f"{sum(merged.rows(step).values())} rows in {max(passes.values(), default=0)} microbatches"
    loss, gradients = merged.loss(step), merged.tensors("gradient", step)
    yield f"loss {loss:.6g}" if loss is not None else "no loss"
    yield f"{len(gradients)} gradients of norm {math.sqrt(sum(float(each.squares) for each in gradients.values())):.4g}"
    rates = sorted({float(line["lr"]) for _, line in merged.lines("group", step)})
    yield f"rates {', '.join(f'{each:g}' for each in rates[:_LOOKED_AT])}"
    yield f"{len(merged.outputs(step))} outputs"
    for what in ("clip", "evaluation", "dropped"):
        if found := merged.lines(what, step):
            yield f"{len(found)} × {what}"
    if found := merged.lines("collectives", step):
        yield f"{sum(line.get('count', len(line['said'])) for _, line in found)} collectives"


def _parameters(merged: Merged, step: int) -> Iterator[str]:
    before = merged.tensors("weight", 1) if step == 1 else merged.tensors("updated", step - 1)
    gradients, after = merged.tensors("gradient", step), merged.tensors("updated", step)
    width = max(map(len, after), default=0)
    for name, each in after.items():
        shape = "×".join(map(str, each.shape)) or "1"
        was, gradient = before.get(name), gradients.get(name)
        yield (
            f"  {name:{width}}  {shape:>12} {'/'.join(each.dtypes)}  weight {was.norm if was else math.nan:.4g} → "
            f"{each.norm:.4g}, gradient {gradient.norm if gradient else math.nan:.4g}"
        )

"""How the reference compares two receipts: their class first, their figures only inside one."""

from collections.abc import Callable, Iterable, Mapping

from contracts.spec.receipt import Comparison, Difference, Part, Receipt
from contracts.stacks.reference.launch import hosts

Reader = Callable[[Receipt], str | None]


def compare(base: Receipt, candidate: Receipt) -> Comparison:
    """What may be said of two runs: their class first, their figures only inside one."""
    parts: tuple[tuple[Part, Reader], ...] = (
        ("host lineage", _host),
        ("preset family", lambda receipt: receipt.lane.family or None),
        ("launch regime", _regime),
    )
    apart = [each for part, said in parts if (each := _difference(part, said(base), said(candidate)))]
    changed = [*_backends_apart(base, candidate), *_runtime_apart(base, candidate)]
    same = not apart and not changed
    ratio = None
    if same and base.tokens_per_second and candidate.tokens_per_second is not None:
        ratio = candidate.tokens_per_second / base.tokens_per_second
    return Comparison(
        standing="not comparable" if apart else "changed class" if changed else "same class",
        differences=(*apart, *changed),
        ratio=ratio,
        base=base.tokens_per_second if same else None,
        candidate=candidate.tokens_per_second if same else None,
        besides=tuple(_besides(base, candidate)),
    )


def _difference(part: Part, base: str | None, candidate: str | None) -> Difference | None:
    """Two parts are equal when both are said and say the same."""
    if base is not None and base == candidate:
        return None
    return Difference(part=part, base=base, candidate=candidate)


def _host(receipt: Receipt) -> str | None:
    host = receipt.provenance.machine.host
    try:
        return hosts.identify(host) if host else None
    except ValueError:  # a class of machines, such as "h200"
        return None


def _regime(receipt: Receipt) -> str | None:
    lane = receipt.lane
    if not (lane.regime and lane.mode and lane.compile):
        return None
    return f"{lane.regime}, {lane.mode}, compile {lane.compile}"


def _backends_apart(base: Receipt, candidate: Receipt) -> Iterable[Difference]:
    """Parts whose implementation changed. The requested backend is a wish; the one that ran is the identity."""
    ran = [{each.part: each.actual for each in receipt.backends} for receipt in (base, candidate)]
    return _apart("backend identity", *ran)


def _runtime_apart(base: Receipt, candidate: Receipt) -> Iterable[Difference]:
    yield from _apart("runtime provenance", _runtime(base), _runtime(candidate))
    unproven = {each.name: each for each in base.provenance.components if each.build is None}
    for each in candidate.provenance.components:
        if each.build is None and each == unproven.get(each.name):
            said = f"{each.name} {each.version}, build unknown"
            yield Difference(part="runtime provenance", base=said, candidate=said)


def _runtime(receipt: Receipt) -> dict[str, str]:
    taken = receipt.provenance
    components = {each.name: f"{each.version}, build {each.build or 'unknown'}" for each in taken.components}
    allocator = receipt.environment.allocator
    return components | {
        "python": taken.python,
        "image": taken.image or "none",
        "device": f"{taken.machine.devices} x {taken.machine.device}",
        "driver": taken.machine.driver or "unknown",
        "launcher": f"{receipt.lane.launcher} {receipt.lane.launcher_version}",
        "allocator": allocator[1] if allocator else "default",
    }


def _apart(part: Part, base: Mapping[str, str], candidate: Mapping[str, str]) -> Iterable[Difference]:
    for name in sorted(base.keys() | candidate.keys()):
        ours, theirs = base.get(name), candidate.get(name)
        if ours != theirs:
            yield Difference(part=part, base=_said(name, ours), candidate=_said(name, theirs))


def _besides(base: Receipt, candidate: Receipt) -> Iterable[str]:
    """What moves a ratio inside a class: another size of world or model, another layout, an unknown work tree."""
    ours, theirs = _circumstances(base), _circumstances(candidate)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"{name} {ours.get(name, 'as the preset')} ≠ {theirs.get(name, 'as the preset')}"


def _circumstances(receipt: Receipt) -> dict[str, str]:
    lane, tree = receipt.lane, receipt.provenance.source.dirty
    degrees = " ".join(f"{name}={value}" for name, value in vars(lane.degrees).items())
    return {
        "preset": str(lane.preset),
        "world": str(lane.world),
        "degrees": degrees,
        "work tree": "unknown" if tree is None else "dirty" if tree else "clean",
        **lane.overrides,
    }


def _said(name: str, value: str | None) -> str | None:
    return None if value is None else f"{name} {value}"

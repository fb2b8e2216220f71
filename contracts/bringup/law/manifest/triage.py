"""The first place to look: facts of a run that is stuck, failed, slow or odd, and the operator's six symptoms.

The layer must match exactly, but a stack words surfaces and fixes as it likes. Its text must name what a person has to
open or do.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.spec.lifecycle import Lifecycle
from contracts.spec.manifest import RunError
from contracts.spec.triage import Diagnosis, Layer, RunFacts, RunIdentity, Symptom

# A running manifest is polled every minute: ten minutes of silence is too long, and so is an hour of startup.
DETACHED = RunFacts(
    state="detached", silent_s=40.0, patience_s=600.0, startup_s=40.0, startup_budget_s=3600.0, steps=0,
    receipt=False, logs=False,
)  # fmt: skip
RUNNING = replace(DETACHED, state="running", silent_s=55.0, startup_s=900.0, steps=340, logs=True)
OK = replace(
    RUNNING, state="ok", receipt=True, declared=("receipt.json", "trace/rank-10.json", "summary.md"),
    present=("summary.md", "receipt.json", "trace/rank-10.json", "stdout.log"),
)  # fmt: skip
LONG_AGO = replace(OK, silent_s=86_400.0)  # a run that ended yesterday is not stuck
FAILED = replace(RUNNING, state="error", error=RunError(type="NCCLError", message="remote peer of rank 11 is gone"))

STUCK: dict[str, tuple[RunFacts, Layer | None]] = {  # facts → the layer at fault
    "stuck-detached": (replace(DETACHED, silent_s=7200.0), "launch"),
    "just-launched": (DETACHED, None),
    "no-manifest": (replace(DETACHED, state=None, logs=True), "launch"),
    "stuck-running-without-receipt": (replace(RUNNING, silent_s=7200.0), "collector"),
    "stuck-running-with-receipt": (replace(RUNNING, silent_s=7200.0, receipt=True), "collector"),
    "running-and-polled": (RUNNING, None),
    "receipt-without-artifacts": (replace(OK, declared=(), present=("stdout.log",)), "observability"),
    "one-artifact-of-three-absent": (replace(OK, present=("summary.md", "receipt.json")), "observability"),
    "artifacts-without-receipt": (replace(OK, receipt=False), "observability"),
    "complete": (OK, None),
    "complete-since-yesterday": (LONG_AGO, None),
    "failed": (FAILED, "execution"),
    "failed-without-a-receipt-long-ago": (replace(FAILED, silent_s=86_400.0), "execution"),
}


@contract("MANI-02", asks="triage", cases=STUCK, source="modal")
def a_stuck_manifest_is_classified(stack: Lifecycle, facts: RunFacts, layer: Layer | None) -> None:
    """The manifest of a stuck run names the layer to look at: detached means launch or scheduling, running without a
    receipt means collector or remote call, and a receipt without its artifacts means observability. A run that still
    has time, or that ended complete, is not stuck.

    "It just hung" is three different failures with three different fixes, and the manifest's state separates them
    before anything is run again. A result whose artifacts never arrived is not a failure of the run.
    """
    found = stack.triage(facts)
    assert found.layer == layer, (
        f"layer is {found.layer}, expected {layer}: state {facts.state}, silent for {facts.silent_s:g} s, "
        f"receipt {facts.receipt}, artifacts {facts.declared} of which exist {facts.present}"
    )
    assert layer is None or (found.first_surface and found.fix), f"{layer} is named without a surface or a fix: {found}"


TOKENS = (512,) * 7
HANGING = replace(RUNNING, steps=0, silent_s=1800.0, waiting_ranks=(0, 1, 2, 4, 5, 6, 7), local_tokens=(512, *TOKENS))
UNEVEN = {
    "last-rank-empty": (
        replace(HANGING, waiting_ranks=(0, 1, 2, 3, 4, 5, 6), local_tokens=(*TOKENS, 0)), "sharding", "7",
    ),
    "rank-11-of-12-empty": (
        replace(HANGING, waiting_ranks=(0, 1), local_tokens=(*(344,) * 11, 0)), "sharding", "11",
    ),
    "polled-all-the-while": (replace(HANGING, silent_s=30.0, startup_s=7200.0), "distributed compile", "compile"),
    "every-rank-has-tokens": (HANGING, "distributed compile", "compile"),
    "tokens-unknown": (replace(HANGING, local_tokens=()), "distributed compile", "compile"),
    "short-last-rank": (replace(HANGING, local_tokens=(*TOKENS, 8)), "distributed compile", "compile"),
}  # fmt: skip


@contract("MANI-02a", asks="triage", cases=UNEVEN, source="modal")
def an_empty_shard_is_looked_at_before_the_network(stack: Lifecycle, facts: RunFacts, layer: Layer, named: str) -> None:
    """If ranks hang in the first collective and one of them has no tokens, the layer to look at is sharding, and that
    rank is named. Otherwise it is the compiled graphs, which differ between ranks, and not the network.

    If one rank gets an empty shard, the compiler optimizes its graph into another one, and the other ranks wait
    forever. Restoring divisibility is the fastest thing to try. The other known cause is a cold compile cache, which
    makes ranks compile for different times and deadlock.
    """
    found = stack.triage(facts)
    assert found.layer == layer, (
        f"layer is {found.layer}, expected {layer}: ranks {facts.waiting_ranks} wait, tokens are {facts.local_tokens}"
    )
    text = f"{found.first_surface} {found.fix} {found.why}".lower()
    assert named in text, f"{named} is not named: {text}"


# The operator's table. Each word is something to open (surface) or to do (fix); one of each group must be there.
ROWS: dict[str, tuple[Symptom, Layer, tuple[str, ...], tuple[str, ...]]] = {
    "long-startup": ("long startup", "bootstrap", ("image", "environment"), ("pin", "bake", "cache")),
    "first-collective": (
        "first collective hangs", "distributed compile", ("receipt", "flag", "rank"), ("warm", "owned"),
    ),
    "collector": (
        "collector never finishes", "collector", ("manifest", "collector"), ("call graph", "remote call", "poll"),
    ),
    "suspect-numbers": ("numbers are suspect", "comparison", ("receipt", "provenance"), ("lane", "metric")),
    "no-bundle": ("logs without a bundle", "observability", ("observability", "manifest"), ("upload", "categor")),
    "re-run": ("re-run differs", "image or volume", ("image", "volume"), ("pin", "reload", "commit")),
}  # fmt: skip


def _right(found: Diagnosis, layer: Layer, surface: tuple[str, ...], fix: tuple[str, ...]) -> None:
    assert found.layer == layer, f"layer is {found.layer}, expected {layer}"
    for name, text, words in (("first surface", found.first_surface, surface), ("fix", found.fix, fix)):
        assert any(word in text.lower() for word in words), f"the {name} names none of {words}: {text!r}"


@contract("MANI-03", asks="symptom_row", cases=ROWS, source="modal")
def six_symptoms_have_a_layer_a_surface_and_a_fix(
    stack: Lifecycle, symptom: Symptom, layer: Layer, surface: tuple[str, ...], fix: tuple[str, ...]
) -> None:
    """Each of the six symptoms of the operator's table leads to its layer, the first place to look and the usual fix.

    Teams lose hours because they repeat the wrong first five steps: a rerun, the network, the launcher. An operator
    finds a table that answers queries, even at night.
    """
    _right(stack.symptom_row(symptom), layer, surface, fix)


SAME = RunIdentity(
    lane="nemo_native/tp2-ep4", metric="tokens/s global, p50", image="sha256:9f2", backend_identity="te-2.16+fa-2.8.3",
    runtime_provenance="torch-2.12.0.dev0405+cu132", volumes={"ckpt": "step-1200", "data": "g7"},
)  # fmt: skip


def _against(**changes: str | dict[str, str]) -> RunFacts:
    return replace(OK, own=replace(SAME, **changes), prior=SAME)  # type: ignore[arg-type]


SEEN: dict[str, tuple[RunFacts, Symptom | None, Layer | None]] = {  # facts → symptom and layer
    "no-step-after-two-hours": (replace(RUNNING, steps=0, startup_s=7200.0), "long startup", "bootstrap"),
    "still-compiling": (replace(RUNNING, steps=0, startup_s=1800.0), None, None),
    "nobody-counted-steps": (replace(RUNNING, steps=None, startup_s=None), None, None),
    "slow-start-then-ok": (replace(OK, startup_s=7200.0), "long startup", "bootstrap"),
    "first-collective": (HANGING, "first collective hangs", "distributed compile"),
    "collector": (replace(RUNNING, silent_s=7200.0), "collector never finishes", "collector"),
    "no-bundle": (replace(OK, receipt=False, declared=(), present=()), "logs without a bundle", "observability"),
    "other-lane": (_against(lane="author_dp/tp1"), "numbers are suspect", "comparison"),
    "other-metric": (_against(metric="tokens/s a GPU, mean"), "numbers are suspect", "comparison"),
    "other-lane-and-image": (_against(lane="author_dp/tp1", image="sha256:001"), "numbers are suspect", "comparison"),
    "other-image": (_against(image="sha256:001"), "re-run differs", "image or volume"),
    "other-backend": (_against(backend_identity="te-2.15+fa-2.8.3"), "re-run differs", "image or volume"),
    "other-runtime": (_against(runtime_provenance="torch-2.12.0.dev0406+cu132"), "re-run differs", "image or volume"),
    "older-volume": (_against(volumes={"ckpt": "step-900", "data": "g7"}), "re-run differs", "image or volume"),
    "same-identity": (replace(OK, own=SAME, prior=SAME), None, None),
}  # fmt: skip


@contract("MANI-03a", asks="triage", cases=SEEN, source="modal")
def facts_lead_to_their_row(stack: Lifecycle, facts: RunFacts, symptom: Symptom | None, layer: Layer | None) -> None:
    """The observable facts of a run give its symptom: each of the six, and none where nothing is wrong.

    A second run with another image or another visible volume is not yet a regression, and one on another lane is not a
    comparison. A cold cache may take most of an hour before the first step, and that is not a hang.
    """
    found = stack.triage(facts)
    seen = (found.symptom, found.layer)
    assert seen == (symptom, layer), f"the facts read as {seen}, expected {(symptom, layer)}: {found.why}"

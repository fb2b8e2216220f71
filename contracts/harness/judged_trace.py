"""A trace, judged: what every healthy training run keeps, with the record and the renderings of any verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from contracts.contract import LAW
from contracts.court import profiles, record, report
from contracts.harness import output
from contracts.harness.families import read_checks
from contracts.harness.gate import Gate
from contracts.observe.party import Observed
from contracts.observe.trace import Trace
from contracts.spec import refuse
from contracts.spec.records import Deviation, Run, Verdict

PROFILE = "OBS"


def judged(
    trace: Trace, folder: Path, *, profile: str = PROFILE, like: Mapping[str, Path] | None = None,
    deviations: Sequence[Deviation] = (),
) -> tuple[Run, Verdict]:  # fmt: skip
    """Judge a trace into a folder; `like` are traces that it must equal, by what they are.

    Raises:
        Refused: for a profile with contracts that are not about a trace, and a folder that cannot be written.
    """
    read_checks(*profiles.beginnings(PROFILE))
    plan = profiles.plan(LAW, profile)
    if other := [str(item) for item in plan.items if not item.id.startswith(PROFILE)]:
        raise refuse("profile", profile, f"is not about a trace: {other[0]}", "name contracts of OBS")
    plan = replace(plan, outside=tuple(each for each in plan.outside if each.startswith(PROFILE)))
    record.make_folder(folder, (*report.FILES, output.FILE))
    gate = Gate(
        subject=Observed(trace, like), origin=str(trace.folder), assistants=(), profile=profile, plan=plan,
        deviations=tuple(deviations),
    )  # fmt: skip
    gate.open(folder)
    for item in gate.plan.items:
        if item.id not in LAW.untested:
            gate.add(gate.judge(item))
    verdict = gate.close()
    for name, text in report.files(gate.run(), verdict).items():
        (folder / name).write_text(text, encoding="utf-8")
    return gate.run(), verdict

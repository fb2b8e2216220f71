"""Recorded runs to draw: everything holds, something is violated, everything is sick."""

from contracts.spec.records import (
    SCHEMA,
    Header,
    Item,
    Kill,
    Outcome,
    Plan,
    Result,
    Run,
    Statement,
    Subject,
    Unclaimed,
)

STATEMENTS = {
    "PAT-01": Statement(promise="Layer i is pattern[i mod length].", source="naming", asks=("blocks",)),
    "TOPO-02": Statement(promise="DP is what the other axes leave.", source="bringup", asks=("topology",)),
    "PAR-01": Statement(promise="Every gradient equals that of one rank.", source="F01", asks=("train",)),
    "MOE-01": Statement(promise="Each token goes to k experts.", source="hub", asks=("run_block",)),
    "RCPT-01": Statement(promise="A run leaves a receipt.", source="law", asks=("receipt",)),
}
PLACES = {"blocks": "fork/gate.py:41", "topology": "fork/gate.py:12", "train": "fork/gate.py:90"}


def run_of(*results: Result, name: str = "fork", started: str = "2026-11-22T20:00:00+00:00") -> Run:
    subject = Subject(name=name, version="7", origin="fork.gate:Stack", offers=frozenset(), layouts=frozenset(),
                      places=PLACES)  # fmt: skip
    header = Header(
        schema=SCHEMA, suite="0.1.0", revision="abc", profile="launch,numeric", subject=subject, assistants=(),
        started=started, command=("rankproof", "check", "--stack", "fork.gate:Stack", "--with=none", "--jobs", "2"),
        python="3.11.7", platform="Linux",
    )  # fmt: skip
    ids = {result.id for result in results}
    return Run(
        header=header,
        plan=Plan(items=tuple(result.item for result in results), outside=("GATE-01",),
                  promises={id: STATEMENTS[id] for id in STATEMENTS if id in ids}),
        results=results,
        unclaimed=(Unclaimed(question="render", evidence="PAT-11[drawn-11] holds"),),
        kills=(Kill(mutant="ForgetsPipeline", of="TOPO-02", case="pp2", fate="killed", words="violated: dp is 4"),),
    )  # fmt: skip


def result(id: str, case: str, outcome: Outcome, words: str = "", **more: object) -> Result:
    asked = STATEMENTS[id].asks if outcome in ("holds", "violated", "broken") else ()
    answered = dict.fromkeys(asked, "fork 7 (unpatched)")
    return Result(id=id, case=case, outcome=outcome, words=words, seconds=0.25, answered=answered, **more)  # type: ignore[arg-type]


HOLDING = tuple(result(id, case, "holds") for id in STATEMENTS for case in ("one", "two", "three"))
GREEN = run_of(*HOLDING)
RED = run_of(
    *(result("TOPO-02", f"pp{n}", "violated", f"dp is {n}, expected 2", rank=n) for n in (2, 4, 8)),
    result("PAT-01", "nam56r", "violated", "AEMEAEMEAEMR at depth 52 has 48 blocks"),
    result("PAT-01", "nam52", "violated", "AEME at depth 52 has 48 blocks"),
    result("PAT-01", "names", "violated", "layer 'ablock' is an 'eblock'"),
    result("PAR-01", "tp2", "violated",
           "gradient layers.3.mixer.wq.weight differs: L2 error 1.7e-03 over 1e-12 (float64); 2 at [0], expected 2.5; "
           "gradient layers.4.mixer.wq.weight differs: row error 3.0e-01 over 1e-12 (float64); 2 at [1], expected 2.5"),
    result("PAR-01", "tp2-sp", "violated",
           "gradient layers.3.mixer.A_log differs: largest error 2.0e-05 over 1e-12 (float64); 1 at [0], expected 2"),
    result("MOE-01", "k2", "broken", "fork raised KeyError on run_block at /nowhere/fork/moe.py:27: 3"),
    result("MOE-01", "k3", "broken", "fork raised KeyError on run_block at /nowhere/fork/moe.py:27: 17"),
    result("MOE-01", "k4", "broken", "fork raised KeyError on run_block at /nowhere/fork/moe.py:99: 3"),
    result("RCPT-01", "one", "not run", "nobody answers receipt: name one that does with --with"),
    result("RCPT-01", "two", "not run", "nobody answers receipt: name one that does with --with"),
    result("PAT-01", "drawn", "not offered", "fork does not offer blocks"),
    result("RCPT-01", "three", "holds"),
)  # fmt: skip


def sick(number: int) -> Run:
    """A stack of which an import fails: nothing of it could be run."""
    words = "fork raised ModuleNotFoundError at import: No module named 'fork.kernels'"
    ids = [*STATEMENTS]
    return run_of(*(result(ids[n % len(ids)], f"case-{n}", "not run", words) for n in range(number)))


def colourful(number: int) -> Run:
    """A run in which each item fails in words of its own, of two kilobytes: nothing folds."""
    spelt = str.maketrans("0123456789", "qwertyuiop")
    return run_of(*(
        result([*STATEMENTS][n % 3], f"case-{n}", "violated", f"{str(n).translate(spelt)} " * 400)
        for n in range(number)
    ))  # fmt: skip


ITEM = Item(id="TOPO-02", case="pp4")

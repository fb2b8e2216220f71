"""GATE: what a deviation forgives. One that is a case alone hides whatever else breaks in that case."""

from __future__ import annotations

from dataclasses import replace

from contracts import instruments
from contracts.checks.gate._recorded_run import TODAY, A, B, declared, recorded
from contracts.contract import contract
from contracts.spec.records import Deviation, Result, Run, Violation, Word
from contracts.spec.stack import Court, CourtOfNumbers


def _run(violations: tuple[Violation, ...], *deviations: Deviation) -> Run:
    """A run in which one item has these violations, and its words name the first alone."""
    run = recorded((A, "violated"), deviations=deviations)
    result = Result(id=A.id, case=A.case, outcome="violated", words=violations[0].words, violations=violations)
    return replace(run, results=(result,))


DP = Violation(words="dp is 4 and not 2, on rank 3")
EP = Violation(words="ep is 4 and not 2")
WQ, WK, WV = (
    Violation(words=f"the gradient of layers.1.{name} differs: L2 error 5.0e-01 over 1e-12", tensor=f"layers.1.{name}")
    for name in ("wq", "wk", "wv")
)
NAN = Violation(words="the gradient of layers.1.wq is not finite at [0, 3]", tensor="layers.1.wq")
DIFFERS = "the gradient of * differs"

FORGIVEN: dict[str, tuple[Run, Word, str]] = {
    "its-words": (_run((DP,), declared(says="dp is 4 and not 2")), "conformant", ""),
    "any-number": (_run((DP,), declared(says="dp is # and not #, on rank #")), "conformant", ""),
    "a-number-with-an-exponent": (_run((WQ,), declared(says="L2 error # over #", tensors=("*.wq",))), "conformant", ""),
    "any-text": (_run((DP,), declared(says="dp is * on rank")), "conformant", ""),
    "other-words": (_run((EP,), declared(says="dp is 4 and not 2")), "violated", "matches none of the words: ep is 4"),
    "another-number": (_run((DP,), declared(says="dp is 3")), "violated", "matches none of the words: dp is 4"),
    "no-words": (_run((DP,), declared(says="")), "violated", "names no words"),
    "one-more": (_run((DP, EP), declared(says="dp is #")), "violated", "not declared: ep is 4 and not 2"),
    "each-by-its-entry": (_run((DP, EP), declared(says="dp is #"), declared(says="ep is #")), "conformant", ""),
    "its-tensor": (_run((WQ,), declared(says=DIFFERS, tensors=("layers.1.wq",))), "conformant", ""),
    "its-tensors": (_run((WQ, WK), declared(says=DIFFERS, tensors=("layers.*.w[qk]",))), "conformant", ""),
    "another-tensor": (_run((WV,), declared(says=DIFFERS, tensors=("layers.1.wq",))), "violated", "matches none"),
    "one-tensor-more": (
        _run((WQ, WK, WV), declared(says=DIFFERS, tensors=("*.wq", "*.wk"))),
        "violated",
        "not declared: the gradient of layers.1.wv",
    ),
    "no-tensors": (_run((WQ,), declared(says=DIFFERS)), "violated", "names no tensors"),
    "more-tensors-than-differ": (
        _run((WQ,), declared(says=DIFFERS, tensors=("*.wq", "*.router"))), "violated", "no tensor *.router differs"
    ),
    "its-tensor-otherwise": (_run((NAN,), declared(says=DIFFERS, tensors=("*.wq",))), "violated", "matches none"),
    "words-beside-its-tensor": (
        _run((WQ, DP), declared(says=DIFFERS, tensors=("*.wq",))), "violated", "not declared: dp is 4 and not 2"
    ),
    "twice": (_run((DP,), declared(says="dp is 4"), declared(says="and not 2")), "violated", "2 deviations; keep one"),
}  # fmt: skip


@contract("GATE-10a", asks="verdict", cases=FORGIVEN, source="law: GATE-10")
def a_deviation_forgives_what_it_names(court: Court, run: Run, word: Word, words: str) -> None:
    """A deviation forgives the words that it names and, where tensors are compared by name, the tensors that it names.
    Whatever else is wrong in its case is a violation.

    With deviations that named a case alone, shared experts' gradients doubled under tensor parallel, and routers'
    gradients halved under a pipeline, were conformant: another defect of the same case was declared.
    """
    _expect(court, run, word, words)


def _on_a_cpu(run: Run) -> Run:
    return replace(run, header=replace(run.header, device="cpu"))


GONE, NARROW = "no longer offered", "wider than what fails"
OTHER = ("2.*", "3.1")
"""Not the version of the recorded stack."""
ASKED: dict[str, tuple[Run, Word, str]] = {
    "not-offered": (recorded((A, "not offered"), (B, "holds"), deviations=(declared("pp2-tp2"),)), "violated", GONE),
    "one-of-two": (recorded((A, "not offered"), (B, "violated"), deviations=(declared(),)), "violated", NARROW),
    "not-run": (recorded((A, "not run"), (B, "holds"), deviations=(declared("pp2-tp2"),)), "incomplete", ""),
    "of-another-device": (
        _on_a_cpu(recorded((A, "not offered"), (B, "holds"), deviations=(declared("pp2-tp2", device="cuda"),))),
        "conformant", "",
    ),
    "holds-on-this-device": (
        _on_a_cpu(recorded((A, "holds"), deviations=(declared("pp2-tp2", device="cuda"),))), "conformant", ""
    ),
    "of-this-device": (
        _on_a_cpu(recorded((A, "not offered"), (B, "holds"), deviations=(declared("pp2-tp2", device="cpu"),))),
        "violated", GONE,
    ),
    "fails-on-this-device": (
        _on_a_cpu(recorded((A, "violated"), deviations=(declared("pp2-tp2", device="cuda"),))), "violated", ""
    ),
    "of-another-version": (
        recorded((A, "not offered"), (B, "holds"), deviations=(declared("pp2-tp2", versions=OTHER),)), "conformant", ""
    ),
    "of-this-version-too": (
        recorded((A, "not offered"), (B, "holds"), deviations=(declared("pp2-tp2", versions=("[34]", *OTHER)),)),
        "violated", GONE,
    ),
    "fails-in-this-version": (
        recorded((A, "violated"), deviations=(declared("pp2-tp2", versions=OTHER),)), "violated", ""
    ),
    "one-for-each-version": (
        recorded(
            (A, "violated"),
            deviations=(declared("pp2-tp2", versions=OTHER), declared("pp2-tp2", versions=("3",))),
        ), "conformant", "",
    ),
}  # fmt: skip


@contract("GATE-10b", asks="verdict", cases=ASKED, source="law: GATE-10")
def a_deviation_whose_case_is_gone_is_red(court: Court, run: Run, word: Word, words: str) -> None:
    """A deviation whose case is no longer offered is red. One that is about another device, or about other versions of
    the stack, is neither used nor red.

    Otherwise a stack declines the case that it fails, and the entry stays as if somebody still watched it.
    """
    _expect(court, run, word, words)


def _expect(court: Court, run: Run, word: Word, words: str) -> None:
    judged = court.verdict(run, TODAY)
    said = [*(fault.words for fault in judged.faults), *(result.words for result in judged.results)]
    assert judged.word == word, f"verdict is {judged.word}, expected {word}; messages: {said}"
    assert any(words in each for each in said), f"no message says {words!r}; messages: {said}"


SIDES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "one": (("wq", "wk"), ("wk",), ()),
    "five": (("a", "b", "c", "d", "e"), ("a", "b", "c", "d", "e"), ()),
    "five-of-seven": (("a", "b", "c", "d", "e", "f", "g"), ("a", "c", "d", "f", "g"), ()),
    "lacking": (("a", "b", "c", "d", "e"), ("a",), ("b", "e")),
}
"""The tensors that are expected, those of them that differ, those that are missing."""


@contract("GATE-10c", asks="parts", cases=SIDES, source="law: GATE-10")
def every_tensor_that_differs_is_named(
    court: CourtOfNumbers, names: tuple[str, ...], wrong: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    """A violation of a comparison by name carries every tensor that differs or is missing, also those that its words
    leave out for brevity.

    A deviation that sees the first three tensors forgives the others unseen.
    """
    import torch

    numerics = instruments.numerics
    want = numerics.arrays({name: torch.tensor([1.0, -2.0], dtype=torch.float64) for name in names})
    off = numerics.arrays({name: torch.tensor([1.5, -2.0], dtype=torch.float64) for name in wrong})
    parts = court.parts({name: off.get(name, want[name]) for name in names if name not in missing}, want)
    named = sorted(part.tensor for part in parts)
    assert named == sorted((*wrong, *missing)), f"the violation names {named}, expected {sorted((*wrong, *missing))}"
    for part in parts:
        other = [name for name in names if name != part.tensor and f" {name} " in f"{part.words} "]
        assert part.tensor in part.words, f"the words of {part.tensor} do not name it: {part.words}"
        assert not other, f"the words of {part.tensor} name {', '.join(other)}"

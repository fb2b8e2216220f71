"""On which device a stack is asked to compute, and what a verdict says of it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from contracts.contract import Contract
from contracts.court import device, report
from contracts.court.judge import judge
from contracts.court.narrowing import placed
from contracts.court.verdict import verdict
from contracts.harness.commands import _device_option
from contracts.harness.gate import today
from contracts.instruments import numerics
from contracts.spec import BlockCall, Execution, Pass, Refused, Session, Tokens, refuse
from contracts.spec.presets import resolve
from contracts.spec.records import Result
from contracts.stacks.reference.stack import Reference
from tests_unit.gate._reported import result, run_of

torch = pytest.importorskip("torch")

RECIPE = resolve("tiny-nam56r")


def _asks(stack: Any) -> None:
    row = numerics.array(torch.zeros(1, 2, dtype=torch.int64))
    stack.run_model(RECIPE, Execution(), {}, Tokens(tokens=row, labels=row), False)


def _contract(**changes: Any) -> Contract:
    known = {"id": "T-01", "check": _asks, "asks": ("run_model",), "cases": {"only": ()}, "source": "here"}
    return Contract(**{**known, "tier": "unit", **changes})


class _Recorded(Reference):
    """Says that it computes on CUDA, and computes nowhere."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run_model(self, recipe: Any, execution: Execution, *given: Any, **named: Any) -> Pass:
        self.asked.append(execution.device)
        return Pass(logits=numerics.array(torch.zeros(1)), losses={})


def _judged(stack: Reference, monkeypatch: pytest.MonkeyPatch, chosen: str, **changes: Any) -> Result:
    monkeypatch.setenv(device.VARIABLE, chosen)
    return judge(_contract(**changes), "only", stack)


def test_a_stack_is_asked_on_the_device_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = _Recorded()
    for chosen in ("cuda", "cpu", "auto"):
        _judged(stack, monkeypatch, chosen)
    assert stack.asked == ["cuda", "cpu", "cpu"]


def test_a_stack_that_allocates_nothing_on_the_device_is_not_judged_there(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _judged(_Recorded(), monkeypatch, "cuda")
    assert result.outcome == "broken"
    assert result.words == "reference was asked for run_model on cuda, and allocated nothing there"
    assert _judged(_Recorded(), monkeypatch, "cpu").outcome == "holds"


def test_a_refusal_is_judged_without_an_allocation_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(_Recorded):
        def run_model(self, *given: Any, **named: Any) -> Pass:
            raise refuse("batch", 0, "is too small", "give rows")

    def expects_a_refusal(stack: Any) -> None:
        with pytest.raises(Refused, match="too small"):
            _asks(stack)

    assert _judged(Refuses(), monkeypatch, "cuda", check=expects_a_refusal).outcome == "holds"


def test_a_stack_that_declares_no_cuda_is_not_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = type("OnCpus", (_Recorded,), {"computes_on": frozenset({"cpu"})})()
    result = _judged(stack, monkeypatch, "cuda")
    assert (result.outcome, result.lack, stack.asked) == ("not offered", "device", [])
    assert result.words == "reference does not compute on cuda"


def test_after_cuda_is_lost_in_one_case_no_later_case_is_asked_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: misaligned address\nSearch for it")

    monkeypatch.setattr(device, "_lost", [])
    monkeypatch.setattr(device, "settle", fails)
    assert _judged(_Recorded(), monkeypatch, "cuda").outcome == "broken"
    monkeypatch.setattr(device, "settle", lambda: None)
    stack = _Recorded()
    result = _judged(stack, monkeypatch, "cuda")
    lost = "CUDA of this process was lost in T-01[only]: CUDA error: misaligned address"
    assert (result.outcome, result.words, stack.asked) == ("not run", lost, [])
    assert _judged(stack, monkeypatch, "cpu").outcome == "holds"


def test_an_error_that_leaves_cuda_usable_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(_Recorded):
        def run_model(self, *given: Any, **named: Any) -> Pass:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(device, "_lost", [])
    assert _judged(Fails(), monkeypatch, "cuda").outcome == "broken"
    assert device.loss() == ""


def test_device_does_not_change_the_cases_of_the_gpu_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = _Recorded()
    _judged(stack, monkeypatch, "cuda", tier="gpu")
    assert stack.asked == ["cpu"]


def test_a_device_takes_the_place_of_the_cpu_wherever_a_question_names_one() -> None:
    x = numerics.array(torch.zeros(1, 2, 4))
    call = BlockCall(recipe=RECIPE, layer=0, weights={}, x=x)
    session = Session(recipe=RECIPE, execution=Execution(world=2), steps=1)
    (given, (first, second), held), named = placed(((call, (call, call), session), {"precision": x}), "cuda")
    assert {given.device, first.device, second.device, held.execution.device} == {"cuda"}
    assert held.execution.world == 2
    assert named["precision"] is x
    assert placed(held, "cuda") is held


def test_devices_that_are_not_there_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "count", lambda: 0)
    for chosen in ("cuda", "gpu"):
        monkeypatch.setenv(device.VARIABLE, chosen)
        with pytest.raises(Refused, match=chosen):
            device.refuse_absent()
    monkeypatch.setenv(device.VARIABLE, "auto")
    device.refuse_absent()


@pytest.mark.parametrize(
    ("devices", "ranks", "expected"), [(8, 8, "cuda"), (1, 4, "cpu"), (1, 1, "cpu"), (0, 2, "cpu")]
)
def test_ranks_compute_on_cuda_if_each_has_a_device(
    monkeypatch: pytest.MonkeyPatch, devices: int, ranks: int, expected: str
) -> None:
    monkeypatch.setenv(device.VARIABLE, "auto")
    monkeypatch.setattr(device, "count", lambda: devices)
    assert device.device_of("dist", ranks) == expected
    assert device.device_of("unit") == "cpu"
    monkeypatch.setenv(device.VARIABLE, "cuda")
    assert {device.device_of("dist", ranks), device.device_of("unit")} == {"cuda"}


def test_every_form_of_a_report_says_on_which_device_a_stack_was_asked() -> None:
    asked = run_of(result("PAT-01", "a", "holds"), result("PAR-01", "b", "violated", "it is off", device="cuda"))
    run = replace(asked, header=replace(asked.header, device="cuda", ranks=4, backend="staged"))
    judged = verdict(run, today())
    words = "Device: cuda, with memory allocated there for 1 of 2 results; 4 ranks over staged, through host memory: "
    words += "NCCL is not judged"
    rendered = report.files(run, judged)
    assert words in report.render(run, judged, "terminal", verbose=False, width=200)
    assert words in rendered["report.html"]
    assert words in rendered["summary.md"]
    assert json.loads(rendered["verdict.json"])["device"] == "cuda"
    assert json.loads(rendered["verdict.json"])["backend"] == "staged"
    assert '<property name="backend" value="staged"' in rendered["junit.xml"]
    assert '<property name="device" value="cuda"' in rendered["junit.xml"]
    assert "--stack fork.gate:Stack --device cuda" in rendered["report.html"]
    assert "Device" not in report.render(asked, verdict(asked, today()), "terminal", verbose=False, width=200)


@pytest.mark.parametrize(("chosen", "devices", "numbers", "said"), [
    ("auto", 1, True, "1 CUDA device here: the unit tier computes on the CPU, the gpu tier on CUDA (--device)\n"),
    ("auto", 8, True, "8 CUDA devices here: the unit tier computes on the CPU, the gpu tier on CUDA (--device)\n"),
    ("auto", 0, True, ""), ("auto", 1, False, ""), ("cpu", 1, True, ""), ("cuda", 1, True, ""),
])  # fmt: skip
def test_check_says_that_it_uses_the_cpu_on_a_node_with_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    chosen: str, devices: int, numbers: bool, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv(device.VARIABLE, chosen)
    monkeypatch.setattr(_device_option, "count", lambda: devices)
    _device_option.say_default(numbers=numbers)
    assert capsys.readouterr().err == said

"""The kernel catalogue: its rules are whole, and what it reports; KRN judges what it chooses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.spec import Refused, kernels
from contracts.spec.capacity import KernelRequest, Proof
from tests_unit._parties.running import side_by_side


def test_the_fallback_reason_names_what_each_kernel_of_the_chain_lacked() -> None:
    request = KernelRequest(variant="fa4", device="sm_90", installed=frozenset(), doc_ids=True, causal=False)
    choice = kernels.choose(request)
    assert (choice.actual, choice.fast) == ("sdpa", False)
    assert choice.fallback_reason == (
        "fa4 needs causal attention, does not take doc_ids; fa2 needs flash-attn, which is not installed"
    )


def test_an_unknown_variant_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(Refused, match="'fa5': is not in the catalogue; use one of fa4, fa3, fa2, sdpa"):
        kernels.choose(KernelRequest(variant="fa5", device="sm_90"))


def test_every_fast_rule_names_a_device_a_package_a_fallback_and_a_source() -> None:
    for rule in kernels.CATALOGUE:
        assert rule.source
        assert bool(rule.devices) == bool(rule.package) == bool(rule.fallback) == rule.fast
        assert all(device.removeprefix("sm_").isdigit() for device in rule.devices)


RAN = Proof(
    kind="executed", device="sm_90", requested="fa4", actual="fa4", receipt="r", finite=True, max_abs_diff=0.0,
    throughput_ratio=1.0, memory_ratio=1.0,
)  # fmt: skip


def test_a_nan_measurement_does_not_promote_a_kernel() -> None:
    nan = float("nan")
    for field in ("max_abs_diff", "throughput_ratio", "memory_ratio"):
        answer = kernels.promotion("fa4", "sm_90", (replace(RAN, **{field: nan}),))  # type: ignore[arg-type]
        assert not answer.allowed
        assert f"{field} is nan" in answer.reason


def test_the_reasons_name_each_proof_that_did_not_count() -> None:
    proofs = (replace(RAN, kind="planned"), replace(RAN, actual="fa2"), replace(RAN, receipt=None))
    assert kernels.promotion("fa4", "sm_90", proofs).reason == (
        "proof 1 does not count: it is planned, not executed; "
        "proof 2 does not count: fa2 ran where fa4 was requested, fa4 is asked about; "
        "proof 3 does not count: it names no receipt"
    )
    assert kernels.promotion("fa4", "sm_90", ()).reason == "no proof was given"


def test_the_kernels_command_shows_what_would_run_and_why(tmp_path: Path) -> None:
    ended = side_by_side(
        {
            "none": ("kernels",),
            "gb10": ("kernels", "--device", "sm_121"),
            "missing": ("kernels", "--device", "sm_90", "--without", "flash-attn-4", "--json"),
        },
        tmp_path,
    )
    assert [done.returncode for done in ended.values()] == [0, 0, 0]
    assert "nvfp4 runs on sm_100, the device is sm_121" in ended["gb10"].stdout
    slow = {"sdpa", "bf16", "sequential"}
    chosen = [line.split("→")[1].split()[0] for line in ended["none"].stdout.splitlines() if "→" in line]
    assert set(chosen) == slow
    first = json.loads(ended["missing"].stdout)["kernels"][0]
    assert (first["rule"]["variant"], first["choice"]["actual"]) == ("fa4", "fa2")

"""The kernel catalogue: each guard alone, every device as a whole word, and evidence in every combination."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.spec import kernels
from contracts.spec.capacity import KernelRequest, Proof, ProofKind
from contracts.spec.errors import Refused
from tests_unit._parties.running import side_by_side

SETTINGS = settings(max_examples=200)
EVERYTHING = frozenset(rule.package for rule in kernels.CATALOGUE if rule.package)
KNOWN = {device for rule in kernels.CATALOGUE for device in rule.devices}

# variant, device → what runs when everything is installed and attention is plain
CHOSEN = {
    ("fa4", "sm_90"): "fa4",
    ("fa4", "sm_100"): "fa4",
    ("fa4", "sm_121"): "fa4",
    ("fa4", "sm_80"): "fa2",
    ("fa4", "sm_120"): "sdpa",
    ("fa3", "sm_90"): "fa3",
    ("fa3", "sm_121"): "fa3",
    ("fa3", "sm_100"): "fa2",
    ("nvfp4", "sm_100"): "nvfp4",
    ("nvfp4", "sm_121"): "fp8",
    ("nvfp4", "sm_90"): "fp8",
    ("nvfp4", "sm_80"): "bf16",
    ("mxfp8", "sm_121"): "fp8",
    ("mamba-ssm", "sm_70"): "sequential",
}


@pytest.mark.parametrize(("variant", "device"), CHOSEN)
def test_a_variant_on_a_device_runs_or_falls_back(variant: str, device: str) -> None:
    choice = kernels.choose(KernelRequest(variant=variant, device=device, installed=EVERYTHING))
    assert choice.actual == CHOSEN[variant, device]
    assert (choice.fallback_reason is None) == (choice.actual == variant)


def test_the_reason_names_what_each_kernel_on_the_way_lacked() -> None:
    request = KernelRequest(variant="fa4", device="sm_90", installed=frozenset(), doc_ids=True, causal=False)
    choice = kernels.choose(request)
    assert (choice.actual, choice.fast) == ("sdpa", False)
    assert choice.fallback_reason == (
        "fa4 needs causal attention, does not take doc_ids; fa2 needs flash-attn, which is not installed"
    )


@pytest.mark.parametrize("device", ["sm_90a", "SM_90", "sm90", "9.0", "sm_90 ", " sm_90", "sm_090", "compute_90", "90"])
def test_a_device_spelled_otherwise_is_unknown(device: str) -> None:
    """A driver's word is turned into `sm_NN` where it is read; a guard does not guess."""
    assert not kernels.choose(KernelRequest(variant="fa4", device=device, installed=EVERYTHING)).fast


@given(st.none() | st.text(max_size=12) | st.integers(0, 2000).map(lambda number: f"sm_{number}"))
@SETTINGS
def test_whatever_is_not_in_the_catalogue_takes_no_fast_path(device: str | None) -> None:
    for rule in kernels.CATALOGUE:
        choice = kernels.choose(KernelRequest(variant=rule.variant, device=device, installed=EVERYTHING))
        assert not choice.fast or device in KNOWN


def test_a_required_kernel_that_a_guard_closes_is_refused_with_its_reason() -> None:
    with pytest.raises(Refused, match="nvfp4 runs on sm_100, the device is sm_121"):
        kernels.choose(KernelRequest(variant="nvfp4", device="sm_121", installed=EVERYTHING, required=True))


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
KINDS: tuple[ProofKind, ...] = ("planned", "observed", "validated", "executed")


@pytest.mark.parametrize("mode", ["train", "eval", "shadow", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_of_all_kinds_and_modes_only_an_executed_step_counts(kind: ProofKind, mode: str) -> None:
    answer = kernels.promotion("fa4", "sm_90", (replace(RAN, kind=kind, runtime_mode=mode),))
    assert answer.allowed == (kind == "executed" and mode in ("train", "eval"))


@pytest.mark.parametrize("length", [2, 3])
def test_no_number_of_other_proofs_makes_an_executed_one(length: int) -> None:
    for kinds in product(KINDS[:3], repeat=length):
        proofs = tuple(replace(RAN, kind=kind) for kind in kinds)
        assert not kernels.promotion("fa4", "sm_90", proofs).allowed
        assert kernels.promotion("fa4", "sm_90", (*proofs, RAN)).allowed


def test_a_measure_that_is_not_a_number_is_no_pass() -> None:
    nan = float("nan")
    for field in ("max_abs_diff", "throughput_ratio", "memory_ratio"):
        answer = kernels.promotion("fa4", "sm_90", (replace(RAN, **{field: nan}),))  # type: ignore[arg-type]
        assert not answer.allowed
        assert f"{field} is nan" in answer.reason


def test_the_reasons_say_which_proof_did_not_count_and_why() -> None:
    proofs = (replace(RAN, kind="planned"), replace(RAN, actual="fa2"), replace(RAN, receipt=None))
    assert kernels.promotion("fa4", "sm_90", proofs).reason == (
        "proof 1 does not count: it is planned, not executed; "
        "proof 2 does not count: fa2 ran where fa4 was requested, fa4 is asked about; "
        "proof 3 does not count: it names no receipt"
    )
    assert kernels.promotion("fa4", "sm_90", ()).reason == "no proof was given"


def test_the_command_shows_what_would_run_and_why(tmp_path: Path) -> None:
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

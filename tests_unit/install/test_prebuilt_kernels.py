"""INST-03b on a machine without a GPU: the check beside a stack that runs its own kernels in the packages' names."""

from dataclasses import replace
from typing import Literal

import pytest

from contracts.bringup.law.install.install_plan import PREBUILT, prebuilt_kernels_run_beside_the_installed_torch
from contracts.spec import BlockCall, BlockRun, Facts, Package, Unreachable, Wish
from contracts.stacks.reference.stack import Reference


class Pretending(Reference):
    """Every package is in one state, and a call for a device is answered by the own kernels on the host."""

    state: Literal["absent", "broken", "importable"] = "importable"

    def kernel_facts(self) -> Facts:
        package = Package(state=self.state, version="1", words="undefined symbol")
        return Facts(device="cuda", packages=dict.fromkeys(PREBUILT, package))

    def run_block(self, call: BlockCall) -> BlockRun:
        run = super().run_block(replace(call, kernels={}, device="cpu"))
        return replace(run, kernels={**run.kernels, **{site: wish.kernel for site, wish in call.kernels.items()}})


class InAnotherState(Pretending):
    def __init__(self, state: Literal["absent", "broken"]) -> None:
        self.state = state


@pytest.mark.parametrize("case", PREBUILT)
def test_prebuilt_kernels_that_run_hold(case: str) -> None:
    prebuilt_kernels_run_beside_the_installed_torch(Pretending(), *PREBUILT[case])


class FallingBack(Pretending):
    def run_block(self, call: BlockCall) -> BlockRun:
        return super().run_block(replace(call, kernels=dict.fromkeys(call.kernels, Wish(kernel="native"))))


class LeavingZeros(Pretending):
    def run_block(self, call: BlockCall) -> BlockRun:
        run = super().run_block(call)
        required = any(wish.required for wish in call.kernels.values())
        return replace(run, y=replace(run.y, data=bytes(len(run.y.data)))) if required else run


@pytest.mark.parametrize(
    ("stack", "case", "words"),
    [
        (FallingBack(), "mamba-ssm", "native ran at scan, and mamba-ssm was required"),
        (LeavingZeros(), "transformer-engine", "beside the stack's own kernel: y differs"),
    ],
    ids=["falls-back", "leaves-zeros"],
)
def test_prebuilt_kernels_that_do_not_run_are_violated(stack: Pretending, case: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        prebuilt_kernels_run_beside_the_installed_torch(stack, *PREBUILT[case])


def test_a_broken_prebuilt_kernel_is_violated_and_an_absent_one_is_not_run() -> None:
    with pytest.raises(AssertionError, match="mamba-ssm is installed and cannot be imported: undefined symbol"):
        prebuilt_kernels_run_beside_the_installed_torch(InAnotherState("broken"), *PREBUILT["mamba-ssm"])
    with pytest.raises(Unreachable, match="mamba-ssm is not installed"):
        prebuilt_kernels_run_beside_the_installed_torch(InAnotherState("absent"), *PREBUILT["mamba-ssm"])

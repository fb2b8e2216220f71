"""What carries the tensors of the ranks follows from the ranks and devices of a node."""

import pytest

from contracts.harness.commands import _backend_option
from contracts.ranks import groups

CASES: dict[str, tuple[str, int, str, str]] = {  # what is asked for, devices → of four ranks, and what is said
    "no device": ("auto", 0, "gloo", ""),
    "one device": ("auto", 1, "staged", "4 ranks, 1 device: staged through host memory; NCCL is not judged"),
    "one too few": ("auto", 3, "staged", "4 ranks, 3 devices: staged through host memory; NCCL is not judged"),
    "one each": ("auto", 4, "nccl", ""),
    "more": ("auto", 8, "nccl", ""),
    "asked for NCCL": ("nccl", 4, "nccl", ""),
    "asked for gloo": ("gloo", 8, "gloo", ""),
    "asked for staged": ("staged", 8, "staged", "4 ranks, 8 devices: staged through host memory; NCCL is not judged"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_backend_follows_from_ranks_and_devices(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, devices, name, words = CASES[case]
    monkeypatch.setattr(groups, "_devices", lambda: devices)
    assert groups.backend_of(chosen, 4) == groups.Backend(name=name, words=words)


@pytest.mark.parametrize("devices", [0, 1, 3])
def test_nccl_with_fewer_devices_than_ranks_is_refused_with_both_numbers(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_devices", lambda: devices)
    with pytest.raises(ValueError, match=f"here are 4 ranks, {devices} device.*: give staged or gloo, or fewer ranks"):
        groups.backend_of("nccl", 4)


@pytest.mark.parametrize("asked", ["nccl", "auto"])
@pytest.mark.parametrize("version", [(2, 29, 7), (2, 31, 2)])
def test_nccl_since_2_30_shares_a_device_on_demand(
    asked: str, version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_devices", lambda: 1)
    monkeypatch.setattr(groups, "_nccl", lambda: version)
    monkeypatch.setenv(groups.SHARING, "1")
    if version > (2, 30):
        assert groups.backend_of(asked, 4) == groups.Backend(name="nccl", words="4 ranks, 1 device: NCCL shares them")
    elif asked == "auto":
        assert groups.backend_of(asked, 4).name == "staged"
    else:
        with pytest.raises(ValueError, match=r"NCCL 2\.30 or later shares a device with NCCL_MULTI_RANK_GPU_ENABLE=1"):
            groups.backend_of(asked, 4)


def test_check_and_pytest_have_the_same_choices() -> None:
    assert _backend_option.CHOICES == groups.CHOICES

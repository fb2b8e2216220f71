"""ENV-03a on a machine without a GPU: the check beside an allocator that reads variables as CUDA's does."""

from collections.abc import Mapping

import pytest

from contracts.bringup.law.environment.allocator_settings import (
    EXPANDABLE,
    REACHED,
    the_receipt_has_the_setting_that_cuda_obeyed,
)
from contracts.bringup.law.environment.allocator_settings_bugs import records_what_the_lane_set, sets_it_too_late
from contracts.spec.devices import AllocatorSeen
from contracts.stacks.reference.stack import Reference


def with_an_allocator(kind: type[Reference]) -> Reference:
    """A stack whose ranks take three segments; the new spelling wins over the old."""

    class Taking(kind):  # type: ignore[valid-type, misc]  # a class that is given
        def allocator_seen(self, environment: Mapping[str, str], device: str) -> AllocatorSeen:
            setting = environment.get("PYTORCH_ALLOC_CONF", environment.get("PYTORCH_CUDA_ALLOC_CONF", ""))
            grow = 3 if EXPANDABLE in setting and kind is not sets_it_too_late else 0
            return AllocatorSeen(device=device, setting=setting, segments=3, expandable=grow)

    return Taking()


@pytest.mark.parametrize("case", REACHED)
def test_the_reference_records_what_its_ranks_obey(case: str) -> None:
    the_receipt_has_the_setting_that_cuda_obeyed(with_an_allocator(Reference), *REACHED[case])


@pytest.mark.parametrize(
    ("mutant", "case", "words"),
    [
        (sets_it_too_late, "by-the-lane", "'expandable_segments:True'\\), and 0 of 3 segments"),
        (records_what_the_lane_set, "by-the-alias", "the receipt says None, and 3 of 3 segments"),
    ],
)
def test_a_receipt_that_says_otherwise_is_caught(mutant: type[Reference], case: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        the_receipt_has_the_setting_that_cuda_obeyed(with_an_allocator(mutant), *REACHED[case])

"""The steps on two ranks in which every two features meet."""

import pytest

from benchmarks._covering import meetings, meetings_of
from contracts.law.parallel.combined import AXES, ROWS, SHARED_AXES, SHARED_ROWS


@pytest.mark.parametrize(("axes", "rows"), [(AXES, ROWS), (SHARED_AXES, SHARED_ROWS)], ids=["all", "shared"])
def test_every_two_features_meet_except_expert_parallel_without_experts(
    axes: dict[str, tuple[str, ...]], rows: tuple[str, ...]
) -> None:
    met = {each for row in rows for each in meetings_of(tuple(row.split()), axes)}
    expert_parallel = [level for level in axes["layout"] if "ep2" in level]
    impossible = {frozenset({("layout", level), ("mlp", "dense")}) for level in expert_parallel}
    assert {*meetings(axes)} - met == impossible

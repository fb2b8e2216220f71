"""The steps on two ranks in which every two features meet."""

from benchmarks._covering import meetings, meetings_of
from contracts.law.parallel.combined import AXES, ROWS


def test_every_two_features_meet_except_expert_parallel_without_experts() -> None:
    met = {each for row in ROWS for each in meetings_of(tuple(row.split()), AXES)}
    expert_parallel = [level for level in AXES["layout"] if level.endswith("ep2")]
    impossible = {frozenset({("layout", level), ("mlp", "dense")}) for level in expert_parallel}
    assert {*meetings(AXES)} - met == impossible

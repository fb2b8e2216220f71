"""The contracts as tests: one function for each tier, one test for each planned case. `rankproof check` runs this file,
and the `tests_*` folders of this repository import it, so that both judge alike. The plugin reads the tier of a test in
the function's name."""

from contracts.harness.promise import Promise


def test_unit(rankproof_case: Promise) -> None:
    rankproof_case()


def test_gpu(rankproof_case: Promise) -> None:
    rankproof_case()


def test_dist(rankproof_case: Promise) -> None:
    rankproof_case()

"""What of FP8 the reference builds on several ranks: not the products of matrices that ranks share."""

from dataclasses import replace

import pytest

from contracts.law._support.fp8_calls import FP8
from contracts.spec import Degrees, Execution, NotOffered, Session
from contracts.stacks.reference.stack import Reference


@pytest.mark.parametrize("degrees", [Degrees(tp=2), Degrees(tp=2, sp=True), Degrees(ep=2)], ids=["tp", "tp-sp", "ep"])
def test_fp8_of_matrices_that_ranks_share_is_declined_by_name(degrees: Degrees) -> None:
    recipe = replace(FP8, pattern="AE", depth=2)
    session = Session(recipe=recipe, steps=1, execution=Execution(world=2, degrees=degrees))
    with pytest.raises(NotOffered, match="FP8 products of matrices that tensor- or expert-parallel ranks share"):
        Reference().train(session)

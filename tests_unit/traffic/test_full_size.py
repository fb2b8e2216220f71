"""What a step of NAM56R sends at its true size, lane by lane: read the diff of a table as a diff of the traffic.

`pytest tests_unit/traffic/test_full_size.py -m slow --snapshot-update` writes the tables anew.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from contracts.harness.commands.traffic import fed_with_one, told
from contracts.law.traffic.full_size_step import WHOLE_LANES
from contracts.spec import Degrees, Execution, Routing
from contracts.spec.presets import PRESETS
from contracts.stacks.reference.stack import Reference
from tests_unit._parties.running import invoked
from tests_unit.test_snapshots import TextFile

pytest.importorskip("torch")

RECIPE = PRESETS["nam56r_h200_bf16_v1"]
PIPELINE = Execution(world=8, degrees=Degrees(pp=2, tp=2, sp=True), fsdp=True, microbatches=4)
LANES: Mapping[str, tuple[Execution, int, Routing]] = {
    **{name: (lane.execution, 0, "balanced") for name, (_, lane) in WHOLE_LANES.items()},
    "pp2-tp2-sp-fsdp2": (PIPELINE, 0, "balanced"),
    "borrowed-tp2-sp-ep4-fsdp4-last-crowded": (WHOLE_LANES["borrowed-tp2-sp-ep4-fsdp4"][1].execution, 7, "crowded"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_a_step_of_nam56r_sends_the_messages_of_its_snapshot(lane: str, snapshot: SnapshotAssertion) -> None:
    execution, rank, routing = LANES[lane]
    recipe = fed_with_one(RECIPE, execution)
    found = Reference().rehearse(recipe, execution, rank, routing)
    assert "\n".join(told(recipe, execution, rank, routing, found)) + "\n" == snapshot.use_extension(TextFile)


@pytest.mark.slow
def test_the_command_prints_the_table_of_a_lane() -> None:
    words = ["traffic", "nam56r_h200_bf16_v1", "--degrees", "tp=2,sp=1", "--depth", "2", "--world", "4"]
    done = invoked(*words, code=0)
    recipe = fed_with_one(replace(RECIPE, depth=2), Execution(world=4, degrees=Degrees(tp=2, sp=True), fsdp=True))
    assert done.output.startswith(f"{recipe.name}: 2 layers of AEMEAEMEAEMR, 2 x 4096 tokens\n")
    assert "all_gather" in done.output
    assert "held after it: weights" in done.output


def test_a_rank_outside_the_world_is_refused() -> None:
    done = invoked("traffic", "tiny-nam56r", "--world", "4", "--rank", "4", code=2)
    assert "rank = 4: must lie in 0 … 3" in done.output

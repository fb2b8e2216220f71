"""The meshes that transformers builds from a `DistributedConfig`, on the ranks of a running world."""

from typing import Any

from contracts.spec import Degrees, Layout, LiveMesh, refuse
from contracts.stacks.kit import worlds
from contracts.stacks.kit.declining import declined
from contracts.stacks.transformers import releases, shims
from contracts.stacks.transformers.abilities import of_version
from contracts.stacks.transformers.configuration import decline

AXES = {"pp": "pp", "dp": "fsdp", "tp": "tp", "ep": "ep", "edp": "efsdp"}
"""Our axis → its dimension; all data-parallel ranks shard here."""


def live_mesh(degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
    """The groups of its meshes on this rank. It closes none.

    Raises:
        Refused: transformers refuses the degrees; in its own words.
        NotOffered: for axes and expert TPs that its meshes do not have.
    """
    declined("transformers", of_version(releases.version()), (), "live_mesh")
    decline({"stack": {
        "its experts lie on ranks that shard: borrowed": layout != "borrowed",
        "its meshes have no axis of context parallel; accelerate has one for other models": degrees.cp > 1,
        "its experts are whole on a rank of expert parallel": degrees.ep > 1 and degrees.expert_tp > 1,
        "experts are cut as the rest is without EP": degrees.ep == 1 and degrees.expert_tp != degrees.tp,
    }})  # fmt: skip
    from transformers.distributed import DistributedConfig
    from transformers.distributed.utils import initialize_distributed_mesh

    data = world // (degrees.pp * degrees.tp)

    def build() -> dict[str, Any]:
        try:
            config = DistributedConfig(tp_size=degrees.tp, fsdp_size=data, pp_size=degrees.pp, ep_size=degrees.ep)
            _, meshes = initialize_distributed_mesh(config)
        except (ValueError, RuntimeError) as error:
            raise refuse("degrees", degrees, f"transformers: {error}", "change a degree") from None
        held = {axis: name for axis, name in AXES.items() if axis != "edp" or degrees.ep > 1}
        return {"cp": None, **{axis: meshes.get_mesh(name) for axis, name in held.items()}}

    with shims.quiet():
        return worlds.live_mesh(build, contribution)

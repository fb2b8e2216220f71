"""CUDA_VISIBLE_DEVICES: what the ranks of a node see, and which device each uses."""

from contracts.contract import contract
from contracts.instruments.ranks import backend_of, gathered, here
from contracts.spec import World

WORLDS = {"on-2": (2,), "on-3": (3,), "on-4": (4,), "on-8": (8,)}


@contract("ENV-06a", asks="devices", cases=WORLDS, source="playbook", tier="dist")
def the_ranks_of_a_node_see_one_device_list(stack: World, world: int) -> None:
    """All ranks of a node have the same CUDA_VISIBLE_DEVICES and see the same devices. Each rank uses the device whose
    index is its local rank.

    A launcher that gives each process its own GPU as "cuda:0" hides the node's links from NCCL.
    """
    mine = stack.devices()
    said = gathered([here().node, here().local_rank, mine.visible, list(mine.names), mine.uses])
    assert len(said) == world, f"{len(said)} ranks answered, the world has {world}"
    of_node = [(rank, *rest) for rank, (node, *rest) in enumerate(said) if node == here().node]
    first, _, visible, names, _ = of_node[0]
    for rank, local_rank, its_visible, its_names, uses in of_node:
        wrong = f"rank {rank} has CUDA_VISIBLE_DEVICES={its_visible!r}, rank {first} of its node {visible!r}"
        assert its_visible == visible, wrong
        assert its_names == names, f"rank {rank} sees {its_names}, rank {first} of its node {names}"
        shared = bool(names) and backend_of("cuda") == "staged"  # ranks take turns on devices that they share
        own = local_rank % len(names) if shared else local_rank
        assert uses == own, f"rank {rank} uses device {uses}, its local rank is {local_rank}"
        assert not names or uses < len(names), f"rank {rank} uses device {uses} of {len(names)}"

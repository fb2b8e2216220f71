"""A dry run of one step: this process acts as one rank of a world that moves no data, and what it issues is recorded.

A stack whose trainer takes any process group has its dry run in torch's fake backend (`worlds.pretended`): tensors are
real there, and every other rank is taken to contribute what this one does.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contracts.instruments import numerics
from contracts.spec import Execution, Group, Holding, Recipe, Rehearsal, Routing, Sent, Tokens, codec, refuse
from contracts.spec.interpreter import python
from contracts.stacks.kit.roles import role_of

if TYPE_CHECKING:
    from contracts.stacks.kit.runs import Run

PATIENCE_S = 240.0


def rows_of(recipe: Recipe) -> Tokens:
    """The batch of a dry run: whole rows of one document, of equal tokens, whose labels all count."""
    import torch

    tokens_BT = numerics.array(torch.zeros(recipe.batch.total, recipe.seq_length, dtype=torch.int64))
    return Tokens(tokens=tokens_BT, labels=tokens_BT)


def refuse_rank(execution: Execution, rank: int) -> None:
    """
    Raises:
        Refused: for a rank that the world does not have.
    """
    if not 0 <= rank < execution.world:
        raise refuse("rank", rank, f"must lie in 0 … {execution.world - 1}", "count ranks from 0")


def rehearsal(issued: Sequence[Any], held: Mapping[str, Holding], experts: Iterable[str]) -> Rehearsal:
    """What one rank issued and holds. `issued` are collectives of `instruments.traffic`."""
    groups: tuple[Group, ...] = tuple(dict.fromkeys(each.members for each in issued))
    sent = tuple(
        Sent(
            op=each.op, group=groups.index(each.members), shapes=each.shapes, dtypes=each.dtypes, reduce=each.reduce,
            sent=each.sent, received=each.received, peer=each.root,
        )
        for each in issued
    )  # fmt: skip
    return Rehearsal(groups=groups, issued=sent, held=held, experts=frozenset(experts))


def stepped(run: "Run", recipe: Recipe) -> Rehearsal:
    """The second step of a run in a pretended world; in the first some stacks learn shapes and gather ahead."""
    from contracts.instruments import traffic

    batch = rows_of(recipe)
    run.step(batch)
    with traffic.recorded() as issued:
        run.step(batch)
    states = [each.state for each in run.optimizers()]
    held = {
        name: holding(each, each, [state[each] for state in states if each in state])
        for name, each in run.parameters().items()
    }
    experts = {link.theirs for link in run.links if "expert" in {role_of(name) for name in link.ours}}
    return rehearsal(issued, held, experts & held.keys())


def holding(weight: Any, parameter: Any, states: Iterable[Mapping[str, Any]]) -> Holding:
    """What a rank holds of a parameter after a step.

    Args:
        weight: what the model has of it. parameter: what the optimizer moves, with its gradient.
        states: those of the optimizers that have it.
    """
    moments = [each for held in states for each in held.values() if getattr(each, "shape", None) == parameter.shape]
    return Holding(
        weight=bytes_of(weight),
        gradient=0 if parameter.grad is None else bytes_of(parameter.grad),
        state=sum(map(bytes_of, moments)),
        cut=_cut(parameter),
    )


def bytes_of(tensor: Any) -> int:
    """Bytes of a tensor on this rank; of a DTensor those of its shard."""
    held = tensor.detach()
    return int((held.to_local() if hasattr(held, "to_local") else held).nbytes)


def _cut(parameter: Any) -> tuple[str, ...]:
    if not hasattr(parameter, "placements"):
        return ()
    names = parameter.device_mesh.mesh_dim_names or ()
    return tuple(str(name) for name, at in zip(names, parameter.placements, strict=True) if not at.is_replicate())


def elsewhere(
    stack: tuple[str, str, Mapping[str, Any]], recipe: Recipe, execution: Execution, rank: int, routing: Routing,
    method: str = "rehearse",
) -> Rehearsal:  # fmt: skip
    """The dry run in a process of its own, for one that is a rank of a real world already.

    Args:
        stack: module, class and named arguments of what answers by `method` there.

    Raises:
        RuntimeError: when that process failed, with the end of what it said.
    """
    said = [sys.path, *stack, method, codec.encode(recipe), codec.encode(execution), rank, routing]
    done = subprocess.run(
        python("-W", "ignore", "-m", __name__), input=json.dumps(said), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a rehearsal in a process of its own failed: {done.stderr.strip()[-500:]}")
    return codec.loads(Rehearsal, done.stdout.splitlines()[-1])


if __name__ == "__main__":
    path, module, name, named, method, recipe, execution, rank, routing = json.load(sys.stdin)
    sys.path += [each for each in path if each not in sys.path]  # where a stack of the user's is
    stack: Any = importlib.import_module(module)
    for part in name.split("."):
        stack = getattr(stack, part)
    answer = getattr(stack(**named), method)
    found = answer(codec.decode(Recipe, recipe), codec.decode(Execution, execution), rank, routing)
    sys.stdout.write(codec.dumps(found) + "\n")

"""Drawn layouts: how a step is spread, over which model, and which rows it is given. Every cell drawn is legal.

Whether axes multiply to a world is asked of nobody: a layout is built from factors of the world.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from contracts.law._support.training_run import LETTERS
from contracts.spec import Degrees, Execution, Layout, Mamba, Moe, Mtp, Recipe

LENGTH = 16
Row = tuple[tuple[int, ...], int]
Drawn = tuple[Recipe, Execution, tuple[Row, ...]]


def layouts(world: int) -> list[Execution]:
    """Every way in which this world can share a step: both layouts, every axis, sharded or not, in copies or not."""
    return [*_own_axis(world), *_borrowed(world)]


def _own_axis(world: int) -> Iterator[Execution]:
    """Experts have an axis of their own: dp, ep and tp multiply to the world."""
    for pp, tp, ep in product(_factors(world), repeat=3):
        if world % (pp * tp * ep) == 0:
            dp = world // (pp * tp * ep)
            for etp in (0, 1) if tp > 1 else (0,):
                yield from _sharded("own-axis", world, Degrees(pp=pp, tp=tp, ep=ep, etp=etp), dp, dp)


def _borrowed(world: int) -> Iterator[Execution]:
    """Experts take their ranks from all others: etp, ep and edp multiply to the same stage."""
    for pp, tp, cp, ep, etp in product(_factors(world), repeat=5):
        stage = world // pp
        if stage % (tp * cp) == 0 and stage % (ep * etp) == 0 and (pp * tp * cp * ep > 1 or pp == world):
            degrees = Degrees(pp=pp, tp=tp, cp=cp, ep=ep, etp=etp)
            yield from _sharded("borrowed", world, degrees, stage // (tp * cp), stage // (ep * etp))


def _sharded(layout: Layout, world: int, degrees: Degrees, dp: int, edp: int) -> Iterator[Execution]:
    for sp, fsdp in product((False, True) if degrees.tp > 1 else (False,), (False, True)):
        for replicas in (1, 2) if fsdp and dp % 2 == 0 and edp % 2 == 0 else (1,):
            yield Execution(
                world=world, degrees=replace(degrees, sp=sp), layout=layout, fsdp=fsdp, replicas=replicas
            )  # fmt: skip


def _factors(world: int) -> list[int]:
    return [each for each in range(1, world + 1) if world % each == 0]


def readers(execution: Execution) -> int:
    """How many ranks read rows of their own."""
    degrees = execution.degrees
    shared = degrees.pp * degrees.tp * (degrees.ep if execution.layout == "own-axis" else degrees.cp)
    return execution.world // shared


def cells(world: int, count: int) -> dict[str, Drawn]:
    """So many layouts of a world, each once, by name; the same ones at every run, on every rank."""
    dice = random.Random(f"layouts of {world}")
    chosen = dice.sample(layouts(world), count)
    return {name_of(layout): cell(layout, dice) for layout in chosen}


def name_of(execution: Execution) -> str:
    degrees = execution.degrees
    said = [f"{axis}{size}" for axis in ("pp", "tp", "cp", "ep") if (size := getattr(degrees, axis)) > 1]
    said += [f"etp{degrees.etp}"] if degrees.etp else []
    said += [word for word, on in (("sp", degrees.sp), ("fsdp", execution.fsdp)) if on]
    return "-".join([execution.layout, *said, *([f"replicas{execution.replicas}"] if execution.replicas > 1 else [])])


def cell(layout: Execution, dice: random.Random) -> Drawn:
    """A layout with its schedule, a model whose dims need not be even over it, and a packed batch."""
    pp = layout.degrees.pp
    interleaved = pp > 1 and dice.random() < 0.5
    many = dice.choice([pp, 2 * pp] if pp > 1 else [1, 2])
    execution = replace(
        layout, microbatches=many, recompute=dice.random() < 0.3, schedule="interleaved" if interleaved else "1f1b",
        mode=dice.choice(["nemo_native", "author_dp"]),
    )  # fmt: skip
    rows = many * readers(execution) + (0 if pp > 1 else dice.randint(0, 1))
    return recipe(layout.degrees, pp * (2 if interleaved else 1), dice), execution, batch(rows, dice)


def recipe(degrees: Degrees, stages: int, dice: random.Random) -> Recipe:
    """A small model. KV and SSM groups may be fewer than TP's ranks, and a vocabulary of 61 divides by none."""
    segments = ["".join(dice.choices("AEMR", k=dice.randint(1, 3 if stages == 1 else 2))) for _ in range(stages)]
    if not any("E" in each for each in segments):
        segments[-1] = f"{segments[-1][:-1]}E"  # most of what the axes do is done to experts
    score = dice.choice(["softmax", "sigmoid"])
    return replace(
        LETTERS, name="drawn", pattern="|".join(segments), depth=sum(map(len, segments)), seq_length=LENGTH,
        heads=8 if degrees.tp > 4 else dice.choice([4, 8]), hidden=48, kv_groups=dice.choice([1, 2, 4]),
        mamba=Mamba(heads=8, head_dim=4, state=8, groups=dice.choice([1, 2, 4])), replicate_kv=True,
        replicate_ssm_groups=True, vocab=dice.choice([61, 64]), untied_embeddings=dice.random() < 0.6,
        activation=dice.choice(["relu2", "swiglu"]), mtp=dice.choice([None, None, Mtp(depth=1, loss_weight=0.4)]),
        moe=Moe(
            experts=dice.choice([8, 16]), top_k=dice.randint(1, 3), expert_hidden=24,
            shared_hidden=dice.choice([0, 32]), score=score, selection_bias=score == "sigmoid",
            bias_rate=0.25, aux_loss=0.3, z_loss=0.05,
        ),
    )  # fmt: skip


def batch(rows: int, dice: random.Random) -> tuple[Row, ...]:
    """Documents of each row and how many labels are masked: in some rows all, in the last one none."""
    drawn = []
    for _ in range(rows - 1):
        ends = [0, *sorted(dice.sample(range(1, LENGTH), dice.randint(0, 3))), LENGTH]
        drawn.append((tuple(end - start for start, end in pairwise(ends)), dice.choice([0, 0, 6, 13, LENGTH])))
    return (*drawn, ((3, LENGTH - 3), 0))

"""What ranks have in common, and what they must not (OBS-02, OBS-06, OBS-10, OBS-12, OBS-20)."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from contracts.contract import contract
from contracts.law.observe._trace import BITS, RUN, merged_of, none_of, observed
from contracts.observe.merged import Merged, Whole
from contracts.observe.trace import Line
from contracts.spec import NotOffered, Observing

_SUM = re.compile(r"(?:all_reduce|reduce_scatter)\((?:sum|avg)\) ([\dx]+) (\w*float\d+)$")
KINDS = {
    "weight": "the weight {}", "gradient": "the gradient of {}", "updated": "the updated weight {}",
    "moment": "the moment {}",
}  # fmt: skip


@contract("OBS-02", asks="trace", cases=RUN, source="F02 F14", slow=True)
def replicas_are_equal_to_the_bit(stack: Observing) -> None:
    """Replicas of a weight, of a reduced gradient or of a moment are bit-identical on all ranks that hold them, before
    and after every step. So are the saved buffers of ranks that share a batch, unless forward passes update them from a
    rank's own rows, as a norm's statistics. Exempt are gradients that an optimizer reduces itself, and weights that
    start different on ranks that communicate in their forward passes.

    Replicas drift apart without a word: the loss is a mean over them.
    """
    merged = _of_several_ranks(stack)
    none_of([*_unlike(merged), *_unlike_buffers(merged)], "no two ranks are known to hold the same part of a tensor")


def _unlike(merged: Merged) -> Iterator[str]:
    begun = dict(_shards(merged))
    for step in range(1, merged.steps + 2):
        for kind, words in KINDS.items():
            tensors = merged.tensors(kind, step)
            unlike = sum(math.prod(each.shape) for each in tensors.values() if each.unlike)
            reduced = min((line.get("reduced", 0) for _, line in merged.lines("step", step)), default=0)
            if kind == "gradient" and unlike and reduced >= unlike:  # by the optimizer, after they were seen
                continue
            wrong: dict[tuple[int, int], list[str]] = {}
            for name, whole in tensors.items():
                pairs = list(_pairs(whole, begun)) if whole.unlike else []
                yield from [""] * (len(pairs) or whole.replicas * (not whole.unlike))
                for first, second in [pair for pair in pairs if pair][:1]:
                    wrong.setdefault((first, second), []).append(name)
            for (first, second), names in wrong.items():
                more = f", and so have {len(names) - 1} more" if len(names) > 1 else ""
                ranks = f"on rank {second} than on rank {first}{more}"
                yield f"step {step}: {words.format(names[0])} has other bits {ranks}"


def _pairs(whole: Whole, begun: Mapping[tuple[str, int], str]) -> Iterator[tuple[int, int] | tuple[()]]:
    """Ranks that should hold the same bits of a tensor and do not; an empty pair for two that do."""
    firsts: dict[tuple[str, str], tuple[int, str]] = {}
    for (part, rank), (_, line) in whole.every.items():
        if not line["partial"]:
            first, bits = firsts.setdefault((part, begun.get((line["name"], rank), "")), (rank, line["bits"]))
            if first != rank:
                yield () if bits == line["bits"] else (first, rank)


def _shards(merged: Merged) -> Iterator[tuple[tuple[str, int], str]]:
    """What a weight begins with on each rank, if ranks hold parts of it that nobody has named: it begins otherwise, DDP
    does not keep it equal, and forward passes exchange streams between the ranks, as tensor and expert parallelism do.
    If any tensor says which part it is, as a DTensor does, one that says nothing is a replica.
    """
    within = {rank.rank: [set(map(int, group.split("-"))) for _, line in merged.lines("step", 1)
                          for group in line.get("within", ())] for rank in merged.trace.ranks}  # fmt: skip
    kept = {(rank.rank, name): set(line["replicas"]) for rank, line in merged.lines("root")
            for name in (*line["trainable"], *line["frozen"]) if name not in line.get("apart", ())}  # fmt: skip
    declared = any(line.get("part") for _, line in merged.lines("weight", 1))
    for name, whole in () if declared else merged.tensors("weight", 1).items():
        bits = {rank: line["bits"] for (_, rank), (_, line) in whole.every.items()}

        def apart(rank: int, others: Iterable[int], bits: Mapping[int, str] = bits) -> bool:
            return any(bits.get(each, bits[rank]) != bits[rank] for each in others)

        if (bits and all(any(apart(rank, group) for group in within[rank]) for rank in bits)
                and not any(apart(rank, kept.get((rank, name), ())) for rank in bits)):  # fmt: skip
            yield from (((name, rank), each) for rank, each in bits.items())


def _unlike_buffers(merged: Merged) -> Iterator[str]:
    sharers = {rank.rank: tuple(line["data"]) for rank, line in reversed(merged.lines("root")) if line["data"]}
    own = {name for step in range(1, merged.steps + 2) for _, line in merged.lines("statistics", step)
           for name in line["names"]}  # fmt: skip
    for step in range(1, merged.steps + 1):
        of: dict[tuple[object, ...], tuple[int, str]] = {}
        for rank, line in merged.lines("buffer", step):
            if line["name"] not in own and rank.rank in sharers:
                key = (sharers[rank.rank], line["name"], line["part"])
                first, bits = of.setdefault(key, (rank.rank, line["bits"]))
                if first != rank.rank:
                    words = f"the buffer {line['name']} has other bits on rank {rank.rank} than on rank {first}"
                    yield "" if bits == line["bits"] else f"step {step}: {words}"


@contract(
    "OBS-06", asks="trace", cases={**RUN, "resumed": ("whole", "resumed")}, source="F05", slow=True,
)  # fmt: skip
def data_parallel_ranks_consume_different_rows(stack: Observing, reference: str = "", other: str = "") -> None:
    """No two data-parallel ranks consume the same microbatch, or most rows of one twice in an epoch of torch's loader.
    No rank consumes a microbatch twice in a step, with the same outputs and loss, unless all steps have the same rows.
    Ranks between which a sampler divides a subset have the same subset.
    Ranks that share their layers' tensors consume the same microbatches. A resumed run continues with the rows of the
    uninterrupted one.

    A sampler that does not know its rank trains every rank on the same rows. The loss falls, more slowly.
    """
    if other:
        none_of(_of_a_resume(stack, reference, other), "no input of the whole run has rows")
        return
    merged = observed(stack)
    epochs = any(line.get("epoch") for step in range(1, merged.steps + 1) for _, line in merged.lines("input", step))
    sharing = any(len(each) > 1 for step in range(1, merged.steps + 1) for each in _sharing(merged, step).values())
    twice, splits = list(_twice(merged)), list(_splits(merged))
    if len(_sharing_a_batch(merged)) < 2 and not epochs and not sharing and not twice and not splits:
        raise NotOffered("nothing said which ranks share a batch, or where an epoch begins", "case")
    nothing = "no two microbatches are of ranks that share a batch or their layers, or of one epoch"
    none_of([*_repeated(merged), *splits, *twice, *_other_rows(merged), *_again(merged)], nothing)


def _splits(merged: Merged) -> Iterator[str]:
    """Subsets of ranks between which a sampler divides one: each takes every nth of its own."""
    ranks, firsts = _sharing_a_batch(merged), dict[int, tuple[int, Line]]()
    for rank in merged.trace.ranks:
        for at, line in enumerate(rank.of("split")) if rank.rank in ranks else ():
            first, its = firsts.setdefault(at, (rank.rank, line))
            if first == rank.rank or not line["shares"] == len(ranks) == its["shares"]:
                continue
            mine, theirs = {*its["numbers"]}, {*line["numbers"]}
            common = f" ({len(mine & theirs)} are in both)" if len(mine) == line["size"] else ""
            words = f"divide a subset of {line['size']} rows between them, and each has its own{common}"
            yield "" if its == line else f"ranks {first} and {rank.rank} {words}: is it drawn without a common seed?"


def _twice(merged: Merged) -> Iterator[str]:
    """Microbatches of a step that are the same in rows, outputs and loss. Passes that are made twice by intent, as of
    an adversary or of a closure, have other weights, outputs or losses."""
    steps = range(1, merged.steps + 1)
    if len({frozenset(merged.rows(step)) for step in steps}) < 2:
        return  # one batch, to measure the speed or to overfit
    for step in steps:
        passes: dict[tuple[int, int], list[object]] = {}
        for rank, line in merged.lines("input", step):
            passes[rank.rank, line["microbatch"]] = [tuple(sorted(line["rows"]))] if line["rows"] else []
        for rank, line in merged.lines("forward", step):
            passes.get((rank.rank, line["microbatch"]), []).append((line["name"], line["squares"]))
        whole = {rank.rank for rank, line in merged.lines("step", step) if line["backward"] == line["microbatches"] > 1}
        for rank, line in merged.lines("loss", step):
            passes.get((rank.rank, line["backward"]), []).append(line["value"])
        first: dict[tuple[object, ...], int] = {}
        for (number, microbatch), seen in passes.items():
            if number in whole and len(seen) > 2:
                before = first.setdefault((number, *seen), microbatch)
                words = f"step {step}: microbatches {before} and {microbatch} of rank {number} are the same"
                yield f"{words} {len(seen[0])} rows" if before != microbatch else ""  # type: ignore[arg-type]


def _of_a_resume(stack: Observing, reference: str, other: str) -> Iterator[str]:
    resumed, all_of = merged_of(stack, other), merged_of(stack, reference)
    before = all_of.steps - resumed.steps
    if before < 1 or not resumed.steps:
        raise NotOffered(f"the whole run has {all_of.steps} steps and the resumed one {resumed.steps}", "case")
    earlier = {row for step in range(1, before + 1) for row in all_of.rows(step)}
    for step in range(1, resumed.steps + 1):
        want, got = all_of.rows(step + before), resumed.rows(step)
        yield from [""] * bool(want)
        count, twice, lost = sum(want.values()), got - want, sum((want - got).values())
        again = sum(number for row, number in twice.items() if row in earlier)
        if again:
            yield f"step {step}: {again} of {count} rows were consumed before the resume"
        if lost:
            yield f"step {step}: {lost} of {count} rows that the whole run consumes there are lost"


def _sharing(merged: Merged, step: int) -> dict[int, list[int]]:
    """Rank → those that must consume its rows: the axis "tp" of its mesh; or, if that has no name, all over which its
    tensors are sharded, unless collectives join other numbers than sums there (sequence parallelism, FSDP by hand)."""
    joins = {line["group"] for _, line in merged.lines("collectives", step)
             if not all(said.startswith(("all_reduce", "broadcast", "barrier")) for said in line["said"])}  # fmt: skip
    found = {}
    for rank, line in merged.lines("root"):
        sharded = line.get("sharded", [])
        found[rank.rank] = line.get("same") or ([] if "-".join(map(str, sharded)) in joins else sharded)
    return found


def _other_rows(merged: Merged) -> Iterator[str]:
    for step in range(1, merged.steps + 1):
        same = _sharing(merged, step)
        of: dict[tuple[tuple[int, ...], int], tuple[int, list[int]]] = {}
        for rank, line in merged.lines("input", step):
            if line["rows"] and len(same.get(rank.rank, ())) > 1:
                first, rows = of.setdefault((tuple(same[rank.rank]), line["microbatch"]), (rank.rank, line["rows"]))
                if first != rank.rank:
                    words = f"step {step}: ranks {first} and {rank.rank} share their layers, and consume other rows"
                    yield "" if rows == line["rows"] else words


def _again(merged: Merged) -> Iterator[str]:
    """Microbatches most rows of which were consumed before in the same epoch. A loader may fill up its last batch; a
    dataset may hold a row several times, under several numbers."""
    ranks = merged.data_ranks or ((0,) if merged.trace.world == 1 else ())
    numbers: dict[int, Counter[int]] = {}
    for step in range(merged.steps + 1):
        for rank, line in merged.lines("drawn-rows", step):
            if rank.rank in ranks:
                numbers.setdefault(line["epoch"], Counter()).update(line["numbers"])
    seen: dict[tuple[int, int], tuple[int, int, int]] = {}
    begun: set[int] = set()
    for step in range(1, merged.steps + 1):
        for rank, line in merged.lines("input", step):
            epoch, batch = line.get("epoch", 0), line.get("batch", 0)
            rows = Counter[int](line["rows"])
            if not epoch or rank.rank not in ranks or batch >= line["last"]:
                continue
            mine = [row for row, count in rows.items() if count == 1]
            before = [seen[epoch, row] for row in mine if seen.get((epoch, row), (rank.rank, batch))[:2]
                      != (rank.rank, batch)]  # fmt: skip
            yield from [""] * (epoch in begun)
            begun.add(epoch)
            drawn = sum(count > 1 for count in numbers.get(epoch, Counter()).values())
            if 1 < len(before) <= drawn and 2 * len(before) > rows.total():
                yield (
                    f"step {step}: {len(before)} of {rows.total()} rows of rank {rank.rank} were consumed before in "
                    f"this epoch, as in step {before[0][2]} on rank {before[0][0]}"
                )
            for row in mine:
                seen.setdefault((epoch, row), (rank.rank, batch, step))


def _sharing_a_batch(merged: Merged) -> Collection[int]:
    """The ranks that share a batch, as DDP or FSDP2 says; else all of them, if in each step they add up as many numbers
    as there are gradients, and no forward pass sends any over them: by hand, or in the optimizer's `step`."""
    every = [rank.rank for rank in merged.trace.ranks]
    group = "-".join(map(str, every))
    inside = any(group in line.get("within", ()) for step in range(1, merged.steps + 1)
                 for _, line in merged.lines("step", step))  # fmt: skip
    if merged.data_ranks or merged.staged or inside:
        return merged.data_ranks
    for step in range(1, merged.steps + 1):
        said = [line["said"] for _, line in merged.lines("collectives", step) if line["group"] == group]
        sums = (_SUM.match(each) for each in itertools.chain(*said[:1]))
        summed = sum(math.prod(map(int, each[1].split("x"))) for each in sums if each)
        gradients = sum(math.prod(each.shape) for each in merged.tensors("gradient", step).values())
        if not 0 < gradients <= summed:
            return ()
    return every


def _repeated(merged: Merged) -> Iterator[str]:
    ranks = _sharing_a_batch(merged)
    for step in range(1, merged.steps + 1):
        of: dict[tuple[int, ...], int] = {}
        for rank, line in merged.lines("input", step):
            rows = tuple(sorted(line["rows"]))
            if not rows or rank.rank not in ranks:
                continue
            yield from [""] * any(each != rank.rank for each in of.values())
            first = of.setdefault(rows, rank.rank)
            if first != rank.rank:
                yield f"step {step}: ranks {first} and {rank.rank} consume the same {len(rows)} rows"


@contract("OBS-10", asks="trace", cases=RUN, source="F04", slow=True)
def members_of_a_group_issue_the_same_collectives(stack: Observing) -> None:
    """The members of a group issue the same collectives in the same order, with the same shapes, dtypes and reductions.

    gloo and NCCL accept a maximum on one rank for a sum on another, and compute something.
    """
    merged = _of_several_ranks(stack)
    if not any(merged.lines("collectives", step) for step in range(merged.steps + 1)):
        raise NotOffered("the trace has no collective", "case")
    none_of(_diverging(merged), "no collective has two members that were observed")


def _diverging(merged: Merged) -> Iterator[str]:
    present = {rank.rank for rank in merged.trace.ranks}
    for step in range(merged.steps + 1):
        groups: dict[str, dict[int, list[str]]] = {}
        for rank, line in merged.lines("collectives", step):
            groups.setdefault(line["group"], {})[rank.rank] = line["said"]
        for group, said in groups.items():
            members = [each for each in map(int, group.split("-")) if each in present]
            for first, second in itertools.pairwise(members):
                one, other = said.get(first, []), said.get(second, [])
                yield ""
                for at, (its, others) in enumerate(itertools.zip_longest(one, other, fillvalue="none")):
                    if its != others:
                        yield (
                            f"step {step}: collective {at} over ranks {members} is {its} on rank {first} and {others} "
                            f"on rank {second}"
                        )
                        break


@contract("OBS-20", asks="trace", cases=RUN, source="F16", slow=True)
def gradients_are_added_up_in_the_precision_that_was_asked_for(stack: Observing) -> None:
    """If FSDP or DDP is set to reduce gradients in a dtype, no gradient of a vector is summed in a narrower one.

    Tensor parallelism may add up the gradients of a norm's weights in the dtype of its activations, which rounds each.
    """
    merged = _of_several_ranks(stack)
    asked = {rank.rank: line["reduces"] for rank, line in merged.lines("root") if line.get("reduces")}
    if not asked:
        raise NotOffered("neither FSDP nor DDP was asked to add up in a dtype", "case")
    none_of(_narrow(merged, asked), "no sum over ranks was seen")


def _narrow(merged: Merged, asked: Mapping[int, str]) -> Iterator[str]:
    vectors = {each.shape[0]: name for name, each in reversed([*merged.tensors("weight", 1).items()])
               if len(each.shape) == 1}  # fmt: skip
    for step in range(1, merged.steps + 1):
        for rank, line in merged.lines("collectives", step):
            for found in filter(None, (_SUM.match(said) for said in line["said"])):
                size, dtype, want = found[1], found[2], asked.get(rank.rank, "")
                name = vectors.get(int(size)) if size.isdecimal() else None
                narrow = name is not None and BITS.get(dtype, 0) < BITS.get(want, 0)
                words = f"step {step}: rank {rank.rank} adds up {size} numbers of {dtype} over ranks {line['group']}"
                yield f"{words}, as many as {name} has; {want} was asked for" if narrow else ""


@contract("OBS-12", asks="trace", cases=RUN, source="F14", slow=True)
def random_numbers_of_a_forward_pass_differ_between_data_parallel_ranks(stack: Observing) -> None:
    """If a forward pass draws random numbers, as dropout does, data-parallel ranks have different random states.

    One seed on all ranks drops the same units of every rank's rows.
    """
    merged = _of_data_ranks(stack)
    drawn = {(rank.rank, step, line["microbatch"]) for step in range(1, merged.steps + 1)
             for rank, line in merged.lines("drawn", step) if line["drawn"]}  # fmt: skip
    if not drawn:
        raise NotOffered("no forward pass draws random numbers", "case")
    wrong = []
    for step in range(1, merged.steps + 1):
        states: dict[tuple[int, str], int] = {}
        for rank, line in merged.lines("input", step):
            if rank.rank in merged.data_ranks and (rank.rank, step, line["microbatch"]) in drawn:
                first = states.setdefault((line["microbatch"], line["random"]), rank.rank)
                wrong += [""] * any(number == line["microbatch"] and its != rank.rank
                                    for (number, _), its in states.items())  # fmt: skip
                if first != rank.rank:
                    wrong.append(
                        f"step {step}: the forward passes of ranks {first} and {rank.rank} draw the same random numbers"
                    )
    none_of(wrong, "no two data-parallel ranks draw random numbers for a microbatch of the same number")


def _of_several_ranks(stack: Observing) -> Merged:
    merged = observed(stack)
    if merged.trace.world < 2:
        raise NotOffered("the run has one rank", "case")
    return merged


def _of_data_ranks(stack: Observing) -> Merged:
    merged = observed(stack)
    if len(merged.data_ranks) < 2:
        raise NotOffered("neither DDP nor FSDP2 said which ranks share a batch", "case")
    return merged

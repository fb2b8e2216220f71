"""Canonical names (spec/blocks.py) and a stack's, in both directions: weights, gradients and moments alike.

A `Link` is one tensor of the stack and ours that it is made of, by moving elements and nothing else. The links of a
model are made of those of its blocks: `within` puts a prefix before both names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contracts.spec import NotOffered


@dataclass(frozen=True, kw_only=True)
class Link:
    """One tensor of a stack.

    Args:
        theirs: its name there.
        ours: the canonical names of what it is made of, in order.
        pack: ours → theirs.
        unpack: theirs → ours.
        sizes: the rows of each of ours, where they are stacked; one entry where they are not.
        number: it is this one of those that ours is a stack of (`of_each`).
        of: how many there are; 0 if ours is no stack.
    """

    theirs: str
    ours: tuple[str, ...]
    pack: Callable[[list[Tensor]], Tensor] = lambda given: given[0]
    unpack: Callable[[Tensor], Iterable[Tensor]] = lambda held: (held,)
    sizes: tuple[int, ...] = (1,)
    number: int = 0
    of: int = 0

    def within(self, theirs: str, ours: str) -> Link:
        """The link of a part, with the names of the whole."""
        return replace(self, theirs=f"{theirs}{self.theirs}", ours=tuple(f"{ours}{name}" for name in self.ours))


def freeze(ours: Collection[str], parameters: Mapping[str, Tensor], links: Iterable[Link]) -> None:
    """Let parameters of a stack require no gradient, given by canonical names, as its users do.

    Raises:
        NotOffered: for one of those that are a single tensor there.
    """
    for link in links:
        frozen = {*link.ours} & {*ours}
        if frozen and len(frozen) < len(link.ours):
            raise NotOffered(f"{link.theirs} is trained as a whole", "stack")
        if frozen and link.theirs in parameters:
            parameters[link.theirs].requires_grad_(False)


def same(theirs: str, ours: str) -> Link:
    return Link(theirs=theirs, ours=(ours,))


def joined(theirs: str, ours: Sequence[str], sizes: Sequence[int], *, dim: int = 0, order: Sequence[int] = ()) -> Link:
    """Several of ours side by side along `dim`, of these sizes; then, with an `order`, their rows in another one."""
    back = sorted(range(len(order)), key=order.__getitem__)

    def pack(given: list[Tensor]) -> Tensor:
        both = torch.cat(given, dim)
        return both[list(order)] if order else both

    def unpack(held: Tensor) -> Iterable[Tensor]:
        return torch.split(held[back] if order else held, list(sizes), dim)

    return Link(theirs=theirs, ours=tuple(ours), sizes=tuple(sizes), pack=pack, unpack=unpack)


def ordered(theirs: str, ours: str, order: Sequence[int]) -> Link:
    """The rows of one of ours in another order: row i there is row `order[i]` of ours."""
    return joined(theirs, (ours,), (len(order),), order=order)


def of_each(theirs: str, ours: str, count: int) -> list[Link]:
    """One tensor there for each of the first dim of ours: `theirs` has `{}` where the number stands."""
    return [Link(theirs=theirs.format(number), ours=(ours,), number=number, of=count) for number in range(count)]


def depthwise(theirs: str, ours: Sequence[str], sizes: Sequence[int]) -> Link:
    """Filters of a depthwise convolution side by side, with a dim for the one channel that each reads."""
    flat = joined(theirs, ours, sizes)
    return replace(flat, pack=lambda given: flat.pack(given)[:, None], unpack=lambda held: flat.unpack(held[:, 0]))


def of_heads(order: Sequence[int], heads: int) -> list[int]:
    """The order of the rows of all heads, from that of one head's."""
    return [head * len(order) + row for head in range(heads) for row in order]


def paired(size: int, still: int = 0) -> list[int]:
    """The order of one head whose last `size` rows turn in pairs 2i, 2i + 1; the canonical rope pairs i, i + size/2.

    `still` is the number of rows before them.
    """
    return [*range(still), *(still + pair + half for pair in range(size // 2) for half in (0, size // 2))]


def grouped(theirs: str, ours: Sequence[str], groups: int, sizes: Sequence[int]) -> Link:
    """Queries, keys and values by KV group; `sizes` are the rows of each in one group."""

    def by_group(held: Tensor) -> Tensor:
        return held.reshape(groups, -1, *(() if theirs.endswith("bias") else held.shape[-1:]))

    def pack(given: list[Tensor]) -> Tensor:
        return torch.cat([by_group(each) for each in given], 1).flatten(0, 1)

    def unpack(held: Tensor) -> list[Tensor]:
        return [each.flatten(0, 1) for each in torch.split(by_group(held), list(sizes), 1)]

    return Link(theirs=theirs, ours=tuple(ours), pack=pack, unpack=unpack)


def to_theirs(ours: Mapping[str, Tensor], links: Iterable[Link]) -> dict[str, Tensor]:
    """Full tensors by the stack's names. Those of which a part is missing are left out."""
    return {
        link.theirs: link.pack([ours[name][link.number] if link.of else ours[name] for name in link.ours])
        for link in links
        if all(name in ours for name in link.ours)
    }


def to_canonical(theirs: Mapping[str, Tensor], links: Iterable[Link]) -> dict[str, Tensor]:
    """The inverse. Tensors without a canonical name, and stacks of which one is missing, are left out."""
    found: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for link in links:
        if link.theirs not in theirs:
            continue
        for name, part in zip(link.ours, _parts(link, theirs[link.theirs]), strict=True):
            if not link.of:
                found[name] = part.contiguous()
                continue
            stacks.setdefault(name, []).append(part)
            if len(stacks[name]) == link.of:
                found[name] = torch.stack(stacks[name])
    return found


def _parts(link: Link, held: Tensor) -> list[Tensor]:
    """All parts of a tensor of the stack."""
    try:
        parts = list(link.unpack(held))
    except (IndexError, RuntimeError) as error:
        raise ValueError(f"{link.theirs} {tuple(held.shape)} is not {' and '.join(link.ours)}: {error}") from error
    if len(parts) != len(link.ours) or sum(each.numel() for each in parts) != held.numel():
        shapes = ", ".join(str(tuple(each.shape)) for each in parts)
        raise ValueError(f"{link.theirs} {tuple(held.shape)} is not {' and '.join(link.ours)}: its parts are {shapes}")
    return parts


def fitting(links: Sequence[Link], held: Iterable[str], all_of: Iterable[str] = ()) -> None:
    """Check that each link names a tensor that the stack holds, that no name is linked twice, and `all_of` are linked.

    Raises:
        ValueError: with every name that does not fit.
    """
    names = sorted(held)
    theirs, ours = [link.theirs for link in links], [name for link in links if not link.number for name in link.ours]
    found = [f"{name!r} is linked twice" for each in (theirs, ours) for name in sorted({*each}) if each.count(name) > 1]
    for name in sorted({*theirs} - {*names}):
        near = difflib.get_close_matches(name, names, n=1)
        found.append(f"{name!r} is no tensor of the stack" + (f", {near[0]!r} is" if near else ""))
    found += [f"{name!r} of the stack has no link" for name in sorted({*all_of} - {*theirs})]
    if found:
        raise ValueError(f"the links do not fit: {'; '.join(found)}")

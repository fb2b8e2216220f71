"""Sketches and fingerprints add up over any sharding, and estimate norms of differences of any rank."""

import itertools
import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from contracts.observe.merged import put  # noqa: E402
from contracts.observe.placement import flat_range  # noqa: E402
from contracts.observe.sketch import (  # noqa: E402
    BUCKETS,
    TENSOR,
    Piece,
    distance,
    fingerprint,
    hashed,
    key_of,
    norm,
    sketch,
    whole,
)

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple)


def _drawn(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def _both(local: torch.Tensor, pieces: tuple[Piece, ...]) -> tuple[torch.Tensor, int]:
    return sketch(local, pieces), fingerprint(local, pieces)


def _add_up(parts: list[tuple[torch.Tensor, int]], tensor: torch.Tensor) -> None:
    want, bits = _both(tensor, whole(tensor.shape))
    total = sum((each for each, _ in parts), torch.zeros(BUCKETS, dtype=torch.float64))
    torch.testing.assert_close(total, want, rtol=1e-12, atol=1e-12)
    assert sum(each for _, each in parts) % 2**64 == bits


@settings(max_examples=60)
@given(SHAPES.filter(len), st.integers(0, 2**31), st.data())
def test_sketches_of_the_parts_of_an_axis_add_up_to_the_whole(
    shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    tensor = _drawn(shape, seed)
    axis = data.draw(st.integers(0, len(shape) - 1))
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=shape[axis], max_size=shape[axis])))
    parts = []
    for rank in range(4):  # contiguous, strided or any other set of indices
        mine = (owner == rank).nonzero().reshape(-1)
        indices = [torch.arange(size) for size in shape]
        indices[axis] = mine
        piece = Piece(start=0, indices=tuple(indices))
        parts.append(_both(tensor.index_select(axis, mine), (piece,)))
    _add_up(parts, tensor)


@settings(max_examples=60)
@given(SHAPES, st.integers(0, 2**31), st.data())
def test_sketches_of_ranges_of_a_flattened_tensor_add_up_to_the_whole(
    shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    tensor = _drawn(shape, seed)
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, tensor.numel()), max_size=3))), tensor.numel()]
    parts = []
    for start, end in itertools.pairwise(edges):
        held = flat_range(tensor.reshape(-1)[start:end], shape, start)
        assert sum(piece.numel for piece in held.pieces) == end - start
        parts.append(_both(held.local, held.pieces))
    _add_up(parts, tensor)


@settings(max_examples=40)
@given(st.integers(1, 8), st.integers(1, 4), st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 2**31))
def test_sketches_of_shards_of_a_fused_weight_add_up_to_the_whole(
    rows: int, width: int, ranks: int, padded: bool, seed: int
) -> None:
    """Gate and up in one tensor: a rank holds a part of each, one after the other, and the last one padding."""
    tensor, parts = _drawn((2 * rows, width), seed), []
    size, total = -(-rows // ranks), torch.zeros(2 * rows, width)
    for rank in range(ranks):
        mine = torch.arange(rank * size, (rank + 1) * size)
        held = [torch.where(mine < rows, mine + rows * half, -1) for half in range(2)]
        if not padded:
            held = [each[each >= 0] for each in held]
        local = torch.cat([tensor[each.clamp(min=0)] for each in held])
        columns = torch.arange(width)
        pieces = [Piece(start=0, indices=(held[0], columns)),
                  Piece(start=held[0].numel() * width, indices=(held[1], columns))]  # fmt: skip
        parts.append(_both(local, tuple(pieces)))
        for piece in pieces:
            put(total, piece.indices, local.reshape(-1)[piece.start :])
    _add_up(parts, tensor)
    assert torch.equal(total, tensor)


def test_padding_does_not_change_a_sketch() -> None:
    tensor = _drawn((5, 3), 1)
    padded = torch.cat([tensor, torch.full((2, 3), math.nan).nan_to_num(7.0)])
    rows = torch.tensor([0, 1, 2, 3, 4, -1, -1])
    _add_up([_both(padded, (Piece(start=0, indices=(rows, torch.arange(3))),))], tensor)


def _one_element(g: torch.Generator) -> torch.Tensor:
    found = torch.zeros(128, 128)
    found[5, 77] = torch.randn((), generator=g)
    return found


def _one_row(g: torch.Generator) -> torch.Tensor:
    found = torch.zeros(128, 128)
    found[9] = torch.randn(128, generator=g)
    return found


DIFFERENCES = {
    "gaussian": lambda g: torch.randn(128, 128, generator=g),
    "rank-one": lambda g: torch.outer(torch.randn(128, generator=g), torch.randn(128, generator=g)),
    "all-ones": lambda g: torch.ones(128, 128),
    "one-row": _one_row,
    "one-element": _one_element,
}


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_a_sketch_estimates_the_norm_of_a_difference_within_a_fifth(kind: str) -> None:
    told = []
    for draw in range(40):
        g = torch.Generator().manual_seed(draw)
        base = torch.randn(128, 128, generator=g, dtype=torch.float64)
        moved = base + 1e-3 * DIFFERENCES[kind](g).double()
        axes = tuple(torch.arange(128 * draw, 128 * draw + 128) for _ in base.shape)  # other hashes in each draw
        pieces = (Piece(start=0, indices=axes),)
        told.append(distance(sketch(base, pieces), sketch(moved, pieces)) / float((moved - base).norm()))
    assert 0.8 < min(told) <= max(told) < 1.25, (min(told), max(told))
    assert abs(sum(told) / len(told) - 1) < 0.05


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(0, 2**31), st.data())
def test_a_fingerprint_changes_with_any_bit(size: int, seed: int, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]))
    tensor = (_drawn((size,), seed) * 8).to(dtype)
    again = tensor.clone()
    assert fingerprint(again, whole((size,))) == fingerprint(tensor, whole((size,)))
    bytes_of = again.view(torch.uint8)
    at = data.draw(st.integers(0, len(bytes_of) - 1))
    bytes_of[at] ^= 1 if dtype == torch.bool else 1 << data.draw(st.integers(0, 7))
    assert fingerprint(again, whole((size,))) != fingerprint(tensor, whole((size,)))


def test_a_fingerprint_changes_with_the_sign_of_zero_and_with_swapped_rows() -> None:
    zeros = torch.zeros(4, 4)
    assert fingerprint(zeros, whole((4, 4))) != fingerprint(-zeros, whole((4, 4)))
    tensor = _drawn((4, 4), 3)
    assert fingerprint(tensor, whole((4, 4))) != fingerprint(tensor.flip(0), whole((4, 4)))


def test_no_two_names_of_a_large_model_share_a_key() -> None:
    names = [f"layers.{layer}.experts.{expert}.{part}.weight"
             for layer in range(64) for expert in range(64) for part in ("up", "down")]  # fmt: skip
    assert len({key_of(name, axis) for name in names for axis in (0, 1)}) == 2 * len(names)
    assert key_of("a", 1) != key_of("a1", 0)


def test_hashes_equal_splitmix64s_and_depend_on_the_counter_only() -> None:
    # the first outputs of SplitMix64 with seed 1234567 (prng.di.unimi.it/splitmix64.c; Rosetta Code's list)
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    found = hashed(1234567, torch.arange(5))
    assert [int(each) % 2**64 for each in found] == want
    assert hashed(1234567, torch.tensor([3])).item() == found[3].item()


def test_an_integer_tensor_and_a_scalar_have_sketches() -> None:
    assert norm(sketch(torch.tensor(3), whole(()))) == 3.0
    assert norm(sketch(torch.zeros(0, 4), whole((0, 4)))) == 0.0


def test_a_coarse_sketch_adds_up_over_rows_and_estimates_the_norm() -> None:
    tensor = _drawn((300, 4, 8), 5)  # more rows than buckets, so that they are added up first
    axes = [torch.arange(size) for size in tensor.shape]
    want = sketch(tensor, [Piece(start=0, indices=tuple(axes), coarse=True)])
    total = torch.zeros(BUCKETS, dtype=torch.float64)
    for rows in (axes[0][::7], axes[0][torch.arange(300) % 7 != 0]):
        total += sketch(tensor[rows], [Piece(start=0, indices=(rows, *axes[1:]), coarse=True)])
    few, rest = axes[0][:1], axes[0][1:]  # few rows are hashed one by one, into the same buckets
    one, more = (sketch(tensor[rows], [Piece(start=0, indices=(rows, *axes[1:]), coarse=True)]) for rows in (few, rest))
    torch.testing.assert_close(one + more, want)
    torch.testing.assert_close(total, want)
    assert 0.8 < norm(want) / float(tensor.norm()) < 1.25


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_sketch_equals_its_formula_and_does_not_change_the_tensor(coarse: bool, padded: bool) -> None:
    for shape in ((5,), (700, 3), (4, 5, 6)):
        tensor = _drawn(shape, 1).double()
        axes = [torch.arange(size) for size in shape]
        if padded:
            axes[0][-1] = -1
        before, want = tensor.clone(), torch.zeros(BUCKETS, dtype=torch.float64)
        hashes = [hashed(key_of(TENSOR, axis), each).tolist() for axis, each in enumerate(axes)]
        for at in itertools.product(*map(range, shape)):
            found = [each[index] for each, index in zip(hashes, at, strict=True)]
            leading, last = sum(each % BUCKETS for each in found[:-1]) % BUCKETS, found[-1] % BUCKETS
            sign = math.prod((each >> 32 & 1) * 2 - 1 for each in found)
            if axes[0][at[0]] >= 0:
                want[((leading % 64 if coarse else leading) + last) % BUCKETS] += sign * tensor[at]
        torch.testing.assert_close(sketch(tensor, [Piece(start=0, indices=tuple(axes), coarse=coarse)]), want)
        assert torch.equal(tensor, before)

"""Faults of one rank among sound tests, on devices if there are any: each is charged to its own test.

torchrun --standalone --nproc-per-node 2 -m pytest -c /dev/null -p contracts.harness.plugin --dist-backend nccl \
    --dist-timeout 12 docs/examples/faults_of_ranks/test_faults.py
"""

import os
import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.dist
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def total() -> float:
    ones = torch.ones(1, device=DEVICE)
    dist.all_reduce(ones)
    return ones.item()


def test_that_is_right() -> None:
    assert total() == RANKS


def test_with_a_bug_on_rank_1() -> None:
    if RANK == 1:
        raise ValueError("the bug")
    assert total() == RANKS


def test_after_the_bug() -> None:
    assert total() == RANKS


def test_that_leaves_a_call_in_flight() -> None:
    if RANK == 0:
        dist.all_reduce(torch.ones(2, device=DEVICE), async_op=True)


def test_after_the_call() -> None:
    assert total() == RANKS


def test_that_hangs_on_rank_0() -> None:
    for _ in range(300 if RANK == 0 else 0):
        time.sleep(0.1)
    assert total() == RANKS


def test_after_the_hang() -> None:
    assert total() == RANKS


@pytest.mark.skipif(DEVICE == "cpu", reason="needs CUDA, whose context it destroys")
def test_whose_kernel_fails_on_rank_1() -> None:
    if RANK == 1:
        torch.zeros(4, device=DEVICE)[torch.tensor([7], device=DEVICE)].sum().item()
    assert total() == RANKS

"""The count of products: what torch's own counter leaves out or counts too often."""

import pytest

pytest.importorskip("torch")
import torch

from contracts.instruments import work


@pytest.mark.parametrize("keys", [4, 2, 1])
def test_heads_that_share_a_key_count_as_many_products_as_others(keys: int) -> None:
    query, key = torch.ones(2, 4, 8, 16, requires_grad=True), torch.ones(2, keys, 8, 16, requires_grad=True)
    with work.counted() as done:
        torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=keys < 4).sum().backward()
    forward = 2 * 2 * 2 * 4 * 8 * 8 * 16
    assert sorted(done.products.values()) == [forward, forward * 5 // 2]


@pytest.mark.parametrize("groups", [1, 12])
def test_two_gradients_of_a_convolution_count_twice_its_output(groups: int) -> None:
    inputs, layer = torch.ones(2, 12, 9, requires_grad=True), torch.nn.Conv1d(12, 12, 4, groups=groups)
    with work.counted() as done:
        layer(inputs).sum().backward()
    forward = 2 * 2 * 6 * 12 * (12 // groups) * 4
    assert dict(done.products) == {"convolution": forward, "convolution_backward": 2 * forward}

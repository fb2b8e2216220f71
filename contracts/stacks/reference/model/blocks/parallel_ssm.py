"""A with `parallel_ssm`: attention and a state-space branch beside each other, as in Falcon-H1 (arXiv 2507.22448).

B sequences · T tokens · D hidden
"""

from torch import Tensor, nn

from contracts.spec import ParallelSsm
from contracts.stacks.reference.model.blocks.common import Output, Packing, State


class ParallelMixers(nn.Module):
    """Both branches read the same normed tokens, and their outputs are added up, each times its scale."""

    def __init__(self, scales: ParallelSsm, attention: nn.Module, ssm: nn.Module) -> None:
        super().__init__()
        self.scales, self.attention, self.ssm = scales, attention, ssm

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        attended: Output = self.attention(x_BTD, packing, {})
        scanned: Output = self.ssm(x_BTD, packing, state)
        return Output(self.added(attended.y_BTD, scanned.y_BTD), {}, scanned.state, attended.seen)

    def added(self, attended_BTD: Tensor, scanned_BTD: Tensor) -> Tensor:
        return self.scales.attention_scale * attended_BTD + self.scales.ssm_scale * scanned_BTD

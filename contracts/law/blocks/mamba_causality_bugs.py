"""Mamba that leaks from later tokens or other documents.

B sequences · T tokens · h heads · p head_dim · n state · c channels · w = T + 3 inputs of the convolution
"""

import torch

from contracts.law._bugs.broken import broken
from contracts.law._bugs.mamba_parts import shifted, unpacked
from contracts.stacks.reference.model.blocks.mamba2 import CausalConv, Mamba2
from contracts.stacks.reference.model.blocks.mamba3 import Mamba3


@broken(CausalConv, "mixed", "BLK-01c[mamba2]: change the output at token 18 of row 0", bugs=("SSM-08",))
def takes_the_end_of_the_padded_convolution(mixed, self, seen_Bwc, of_Bw):
    """The convolution pads both sides by three and keeps the last T outputs, so each token sees three ahead."""
    ahead = torch.cat([seen_Bwc[:, 3:], torch.zeros_like(seen_Bwc[:, :3])], dim=1)
    return mixed(self, ahead, of_Bw)


@broken(CausalConv, "extended", "BLK-02c[mamba2]: document 0 changes the output at token 3 of another one")
def resets_the_state_and_not_the_convolution(extended, self, u_BTc, packing, state):
    """The convolution ignores document boundaries, so three tokens leak at each one."""
    return extended(self, u_BTc, unpacked(packing), state)


@broken(Mamba2, "scan", "BLK-02c[mamba2]: document 0 changes the output at token 3 of another one")
def resets_the_convolution_and_not_the_state(scan, self, x, dt, b, c, packing, state):
    """seq_idx reaches the convolution only, so the scan state runs through all documents."""
    return scan(self, x, dt, b, c, unpacked(packing), state)


@broken(Mamba2, "scan", "BLK-02c[mamba2]: document 0 changes the output at token 3 of another one")
def resets_one_token_late(scan, self, x, dt, b, c, packing, state):
    """The state is reset one token late: the first token of a document reads the previous document's state."""
    return scan(self, x, dt, b, c, shifted(packing, 1), state)


@broken(Mamba2, "scan", "BLK-04d[mamba2]: y of document 0 of row 0 differs")
def resets_one_token_early(scan, self, x, dt, b, c, packing, state):
    """The state is reset one token early: the last token of a document has lost it. Nothing leaks."""
    return scan(self, x, dt, b, c, shifted(packing, -1), state)


@broken(Mamba2, "scan", "BLK-04d[mamba2]: after row 0 the state ssm differs")
def leaves_the_state_of_every_document(scan, self, x, dt, b, c, packing, state):
    """Outputs are right, but the state returned to the next call mixes all documents of the row."""
    found = scan(self, x, dt, b, c, packing, state)
    return found[0], scan(self, x, dt, b, c, unpacked(packing), state)[1]


@broken(Mamba3, "before", "BLK-01c[mamba3]: tokens from 21 on in row 0 change the output at token 20 of row 0")
def takes_the_token_after_for_the_token_before(before, self, u_BThx, packing, state):
    """The trapezoidal step takes the next token for the previous one: the shift has the wrong sign."""
    return torch.cat([u_BThx[:, 1:], torch.zeros_like(u_BThx[:, :1])], dim=1)


@broken(Mamba3, "before", "BLK-02c[mamba3]: document 0 changes the output at token 3 of another one")
def begins_a_document_with_the_last_token_of_another(before, self, u_BThx, packing, state):
    """The state is reset, but the first step of a document uses the last token of the previous one."""
    return before(self, u_BThx, unpacked(packing), state)


@broken(Mamba3, "forward", "BLK-04d[mamba3]: after row 0 the state angle differs")
def leaves_the_angle_of_every_document(forward, self, x_BTD, packing, state):
    """The returned angle is the sum over the whole row instead of the last document."""
    found = forward(self, x_BTD, packing, state)
    last = forward(self, x_BTD, unpacked(packing), state).state["angle"]
    return found._replace(state=found.state | {"angle": last})

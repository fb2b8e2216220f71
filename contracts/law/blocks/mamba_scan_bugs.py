"""Mamba with a bug in the state between chunks or between calls, or that leaks from later tokens or other documents.

B sequences · T tokens · h heads · p head_dim · n state · c channels · w = T + 3 inputs of the convolution
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contracts.law._bugs.mamba_parts import shifted, unpacked
from contracts.law._bugs.numeric import CausalConv, Mamba2, Mamba3, Output, Packing, State, broken, with_attributes

# the state between chunks


class ChunkByChunk(Mamba2):
    """The scan as a loop over chunks; `between` maps the state that passes from one to the next."""

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, packing: Packing, state: Any) -> tuple[Tensor, Tensor]:
        found, length = [], x.shape[1]
        for start in range(0, length, self.chunk):
            at = slice(start, start + self.chunk)
            documents, before = packing.documents_BT, None if state is None else self.between(state)
            if start and before is not None:  # the last chunk's state counts only if its document continues
                goes_on = documents[:, start] == documents[:, start - 1]
                before = before * goes_on[:, None, None, None]
            y, state = super().scan(
                x[:, at], dt[:, at], b[:, at], c[:, at], packing._replace(documents_BT=documents[:, at]), before
            )
            found.append(y)
        return torch.cat(found, dim=1), state

    def between(self, state_Bhpn: Tensor) -> Tensor:
        return state_Bhpn


@broken(ChunkByChunk, "between", "BLK-04b[sixteen]: y differs: ")
def drops_the_state_between_chunks(between, self, state_Bhpn):
    """Every chunk starts from a zero state."""
    return torch.zeros_like(state_Bhpn)


@broken(ChunkByChunk, "between", "BLK-04b[sixteen]: the gradient of ", bugs=("SSM-18",))
def cuts_the_gradient_between_chunks(between, self, state_Bhpn):
    """The state passes to the next chunk without gradient. Every output is right."""
    return state_Bhpn.detach()


@broken(ChunkByChunk, "scan", "BLK-04b[sixteen]: y differs: ")
def passes_the_state_undecayed(scan, self, x, dt, b, c, packing, state):
    """A chunk adds to the incoming state without decaying it over the chunk."""
    found, kept = [], state
    for start in range(0, x.shape[1], self.chunk):
        at = slice(start, start + self.chunk)
        piece = (x[:, at], dt[:, at], b[:, at], c[:, at])
        within = packing._replace(documents_BT=packing.documents_BT[:, at])
        found.append(Mamba2.scan(self, *piece, within, kept)[0])
        added = Mamba2.scan(self, *piece, within, None)[1]
        kept = added if kept is None else kept + added
    return torch.cat(found, dim=1), kept


@broken(Mamba2, "scan", "BLK-04b[five]: y differs: ")
def leaves_out_the_last_part_of_a_chunk(scan, self, x, dt, b, c, packing, state):
    """The partial last chunk is not computed: 37 tokens have seven chunks of 5 and two tokens more."""
    y, last = scan(self, x, dt, b, c, packing, state)
    whole = x.shape[1] // self.chunk * self.chunk
    return torch.cat([y[:, :whole], torch.zeros_like(y[:, whole:])], dim=1), last


# the state between calls
@broken(Mamba2, "scan", "BLK-04c[inside-a-chunk]: y in two halves, cut at 20, differs")
def begins_every_call_empty(scan, self, x, dt, b, c, packing, state):
    """The scan ignores its initial state."""
    return scan(self, x, dt, b, c, packing, None)


@broken(Mamba2, "scan", "BLK-04c[at-the-edge-of-a-chunk]: y in two halves, cut at 16, differs")
def gives_every_row_the_state_of_the_first(scan, self, x, dt, b, c, packing, state):
    """Every row uses the initial state of row 0, as with a batch stride of 0."""
    return scan(self, x, dt, b, c, packing, None if state is None else state[:1].expand_as(state))


@broken(CausalConv, "extended", "BLK-04c[inside-a-chunk]: y in two halves, cut at 20, differs")
def passes_the_state_and_not_the_convolution(extended, self, u_BTc, packing, state):
    """The scan continues and the convolution restarts, so three tokens after each cut are wrong."""
    return extended(self, u_BTc, packing, None)


@broken(CausalConv, "last", "BLK-04c[inside-a-chunk]: the state conv_x has shape (2, 32, 4), expected (2, 32, 3)")
def carries_as_many_inputs_as_there_are_taps(last, self, seen_Bwc, of_Bw):
    """The convolution returns four inputs instead of three. A kernel that expects three reads the wrong ones."""
    return F.pad(last(self, seen_Bwc, of_Bw), (1, 0))


@broken(CausalConv, "last", "BLK-04c[inside-a-chunk]: y in two halves, cut at 20, differs")
def carries_inputs_behind_their_activation(last, self, seen_Bwc, of_Bw):
    """The convolution's state holds inputs after silu."""
    return F.silu(last(self, seen_Bwc, of_Bw))


@broken(
    CausalConv,
    "last",
    "BLK-04a[one-token]: the state conv_b differs",
    "BLK-04c[after-one-token]: y in two halves, cut at 1, differs",
    bugs=("SSM-16",),
)
def forgets_the_past_after_a_short_call(last, self, seen_Bwc, of_Bw):
    """A call shorter than the convolution returns zeros instead of inputs of the previous call."""
    mine = torch.arange(seen_Bwc.shape[1], device=seen_Bwc.device) >= 3
    return last(self, seen_Bwc * mine[:, None], of_Bw)


@broken(Mamba3, "before", "BLK-04b[mamba3-five]: y differs: ")
def loses_the_token_before_a_chunk(before, self, u_BThx, packing, state):
    """The first token of a chunk has no previous token, because the kernel reads its own tile only."""
    first = torch.arange(u_BThx.shape[1], device=u_BThx.device) % self.chunk == 0
    return before(self, u_BThx, packing, state) * ~first[:, None, None]


@broken(Mamba3, "angle", "BLK-04b[mamba3-sixteen]: y differs: ")
def begins_the_angle_in_each_chunk(angle, self, turn_BThS, packing, state):
    """The running sum of angles restarts at each chunk."""
    chunks = zip(turn_BThS.split(self.chunk, dim=1), packing.documents_BT.split(self.chunk, dim=1), strict=True)
    return torch.cat(
        [angle(self, each, packing._replace(documents_BT=documents), None) for each, documents in chunks], dim=1
    )


class _WithoutPart(Mamba3):
    """Mamba-3 that ignores one part of its initial state."""

    part: str

    def forward(self, x_BTD: Tensor, packing: Packing, state: State) -> Output:
        return super().forward(x_BTD, packing, {name: each for name, each in state.items() if name != self.part})


with_attributes(
    "PassesTheStateWithoutTheTokenBefore",
    "k and v of the last token are not carried, so the first step after a cut lacks its previous token.",
    "BLK-04c[mamba3-inside-a-chunk]: y in two halves, cut at 20, differs",
    owner=_WithoutPart,
    part="v",
)

with_attributes(
    "PassesTheStateWithoutItsAngle",
    "The rotated state is carried without its angle, and new tokens rotate from 0.",
    "BLK-04c[mamba3-inside-a-chunk]: y in two halves, cut at 20, differs",
    owner=_WithoutPart,
    part="angle",
)

with_attributes(
    "PassesEverythingButTheState",
    "Angle, k and v are carried, and the scan state is not.",
    "BLK-04c[mamba3-after-one-token]: y in two halves, cut at 1, differs",
    owner=_WithoutPart,
    part="ssm",
)


@broken(Mamba3, "forward", "BLK-04c[mamba3-inside-a-document]: y in two halves, cut at 19, differs")
def carries_k_before_its_turn(forward, self, x_BTD, packing, state):
    """The carried k is not rotated, and the next call does not rotate it."""
    found = forward(self, x_BTD, packing, state)
    k_Bhn = self.rotated(found.state["k"][:, None], -found.state["angle"][:, None])[:, 0]
    return found._replace(state=found.state | {"k": k_Bhn})


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

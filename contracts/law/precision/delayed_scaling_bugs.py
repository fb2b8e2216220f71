"""Delayed scaling with one bug each: amax histories, scales, their update, their checkpoint."""

import torch

from contracts.law._bugs.numeric import GRADIENT, INPUT, WEIGHT, Fp8Matmul, Trainer, broken


@broken(Fp8Matmul, "record", "PREC-01g[dense]: amax of weight of mixer.w2 is")
def records_the_wrong_tensor(record, self, t_RC, role, matrix):
    """The amax of the input is recorded for all three tensors."""
    if role == INPUT:
        for each in (INPUT, WEIGHT, GRADIENT):
            record(self, t_RC, each, matrix)


@broken(Fp8Matmul, "record", "PREC-01g[dense-again]: fell to")
def forgets_the_other_microbatches(record, self, t_RC, role, matrix):
    """Each pass overwrites the amax of earlier passes, so the history knows only the last microbatch."""
    self.amax_history[0, role, matrix] = t_RC.detach().abs().max() if t_RC.numel() else 0.0


@broken(Fp8Matmul, "record", "PREC-01g[experts]: amax of weight of mixer.shared.w2 is")
def records_the_mean_of_a_row(record, self, t_RC, role, matrix):
    """The mean of each row is recorded instead of the amax, so outliers saturate at every step."""
    record(self, t_RC.abs().mean(1, keepdim=True), role, matrix)


@broken(Fp8Matmul, "record", "PREC-01g[dense]: rows 1 and on of mixer.w1.fp8.amax_history differs")
def moves_the_ring_in_the_pass(record, self, t_RC, role, matrix):
    """The history advances with every quantised tensor, so a recomputed pass has another scale."""
    record(self, t_RC, role, matrix)
    self.advance()


@broken(Fp8Matmul, "advance", "PREC-01h[whole]: is not clear")
def does_not_roll_the_ring(advance, self):
    """Scales are computed anew but the history never shifts, so no amax is ever forgotten."""
    held = self.amax_history.clone() if self.delayed else None
    advance(self)
    if held is not None:
        self.amax_history.copy_(held)


@broken(Fp8Matmul, "advance", "PREC-01h[cut]: differs")
def keeps_one_step(advance, self):
    """The history has the length of its buffer and remembers one step."""
    advance(self)
    if self.delayed:
        self.amax_history[2:] = 0


@broken(Fp8Matmul, "advance", "PREC-01i[full]: has what came around, 16")
def lets_the_oldest_row_come_around(advance, self):
    """The ring turns, and nobody clears the row that the next step raises: no amax is ever forgotten."""
    oldest = self.amax_history[-1].clone() if self.delayed else None
    advance(self)
    if oldest is not None:
        self.amax_history[0] = oldest


@broken(Fp8Matmul, "advance", "PREC-01i[full]: with an amax of 4096 in row 14 scale of")
def looks_at_the_newest_half(advance, self):
    """Scales follow only the newest half of the history, and saturate at what was met before."""
    kept = self.amax_history.clone() if self.delayed else None
    if kept is not None:
        self.amax_history[len(kept) // 2 :] = 0
    advance(self)
    if kept is not None:
        self.amax_history[2:] = kept[1:-1]


@broken(Fp8Matmul, "advance", "PREC-01h[recomputed]: differs")
def scales_gradients_for_e4m3(advance, self):
    """One maximum serves both formats, so gradients use 1/128 of the range of e5m2."""
    advance(self)
    if self.delayed:
        self.scale[GRADIENT] *= 448 / 57344


@broken(Fp8Matmul, "advance", "PREC-01h[whole]: after step 1 row 0 of")
def never_updates_its_scales(advance, self):
    """Nobody calls the update, so scales stay 1."""


@broken(Fp8Matmul, "advance", "PREC-01h[more-experts-than-tokens]: where the history is zero, differs")
def scales_by_an_amax_of_nothing(advance, self):
    """A maximum of 0 is replaced by a small number. When an expert without tokens gets some, all are clamped, and
    the output is nearly zero (TransformerEngine #825 keeps such modules out of the update)."""
    advance(self)
    idle = self.amax_history.amax(0) == 0
    self.scale[idle] = 448.0 / 1e-12


@broken(Fp8Matmul, "advance", "PREC-01h[more-experts-than-tokens]: differs")
def keeps_the_scale_of_a_step_without_tokens(advance, self):
    """Over-correction: an expert without tokens keeps all three scales, that of its weights too."""
    before = self.scale.clone()
    advance(self)
    idle = self.amax_history[1].amin(0) == 0
    self.scale[:, idle] = before[:, idle]


@broken(Trainer, "load", "PREC-04a[after-2-of-4]: resumed after step 2, at step 4: buffers")
def begins_its_rings_anew(load, self, state, position):
    """FP8 state is extra state: the loader skips it with a warning, and amax histories start empty."""
    fresh = {
        name: torch.zeros_like(each) if name.endswith("amax_history") else torch.ones_like(each)
        for name, each in state.items() if "fp8" in name.split(".")
    }  # fmt: skip
    load(self, {**state, **fresh}, position)


@broken(Trainer, "load", "PREC-04a[after-1-of-3]: resumed after step 1, at step 3: buffers")
def saves_scales_without_rings(load, self, state, position):
    """Scales are saved without amax histories: the next step is right, the one after that knows one amax instead of
    all.
    """
    rings = {name: torch.zeros_like(each) for name, each in state.items() if name.endswith("amax_history")}
    load(self, {**state, **rings}, position)

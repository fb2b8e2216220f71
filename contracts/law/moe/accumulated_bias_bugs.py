"""Selection biases that move in each microbatch, by a part of the counts, or in half precision."""

from collections.abc import Mapping

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Batch, ModelOutput, MoE, Trainer, broken, derived, mutant


@derived("MOE-06b[three]: router.bias after step 1 differs")
class MovesTheBiasEachMicrobatch(Trainer):
    """The update runs in the forward pass: one move for each microbatch, by a part of the counts."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        super().move_biases(out.seen)
        return out

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        pass


@broken(
    Trainer,
    "move_biases",
    "MOE-06b[one]: router.bias after step 1 differs",
    "MOE-06k[grouped]: layers.1.mixer.router.bias: in step 1 two experts moved 0 rates apart",
    "MOE-06k[latent]: layers.1.mixer.router.bias: in step 1 two experts moved 0 rates apart",
    bugs=("EXB-01",),
)
def never_moves_the_bias(move_biases, self, seen):
    """The hook that updates the bias is not registered for this model."""


@broken(
    Trainer,
    "move_biases",
    "MOE-06b[one]: layers.5.mixer.router.bias after step 1 differs",
    "MOE-06k[hybrid]: layers.3.mixer.router.bias: in step 1 two experts moved 0 rates apart",
    bugs=("EXB-02",),
)
def returns_after_the_first_layer(move_biases, self, seen):
    """`return` inside the loop over layers: only the first router's bias moves."""
    first = {name: each for name, each in seen.items() if name == "layers.1.counts"}
    move_biases(self, first | {name: torch.ones_like(each) for name, each in seen.items() if name not in first})


@derived("MOE-06b[five]: router.bias after step 1 differs")
class CountsTheLastMicrobatch(Trainer):
    """Each microbatch overwrites the counter instead of adding to it."""

    def accumulate(self, micro: Batch, counts: Mapping[str, Tensor]) -> ModelOutput:
        out = super().accumulate(micro, counts)
        self.last = out.seen
        return out

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(self.last)

    last: Mapping[str, Tensor]


@broken(Trainer, "accumulate", "MOE-06b[recomputed]: counted 390 assignments, expected 5 · 13 · 3", bugs=("EXB-07",))
def counts_again_in_the_backward_pass(accumulate, self, micro, counts):
    """A buffer of the router counts in its forward pass, and recomputation runs that pass twice."""
    found = {}
    hooks = []
    for number, layer in self.model.layers.items():
        mixer = layer.mixer
        if isinstance(mixer, MoE):
            name = f"layers.{number}.counts"

            def add(_, __, out, name=name):
                found[name] = found.get(name, 0) + out.counts_E

            hooks.append(mixer.router.register_forward_hook(add))
    out = accumulate(self, micro, counts)
    for hook in hooks:
        hook.remove()
    return out._replace(seen={**out.seen, **found})


@broken(Trainer, "total", "MOE-06h[from-one]: step 2 counted 234 assignments in layer 1, expected 117",
        "MOE-06k[grouped]: after step 2, with step 1 in the run, layers.1.mixer.router.bias differs")  # fmt: skip
def counts_on_from_the_step_before(total, self, parts):
    """The router's counter is a buffer that nobody sets to zero after the biases have moved."""
    found = total(self, parts)
    before = vars(self).setdefault("counted", {})
    for name in [name for name in found if name.endswith(".counts")]:
        found[name] = before[name] = before.get(name, 0) + found[name]
    return found


@broken(Trainer, "build", "MOE-06h[from-one]: is held in bfloat16, expected float32", bugs=("EXB-05",))
def casts_buffers_too(build, self):
    """`model.bfloat16()` casts the selection bias, and steps of 0.001 are lost."""
    model = build(self)
    for each in model.modules():
        for name, buffer in each.named_buffers(recurse=False):
            each.register_buffer(name, buffer.to(model.activations))
    return model


@mutant(of="MOE-06h", case="from-one", says="is 1 after step 1, expected", bugs=("EXB-05",))
@broken(Trainer, "move_biases", "MOE-06h[from-minus-four]: is -4 after step 1, expected")
def moves_biases_in_half(move_biases, self, seen):
    """Over-correction: the buffer is float32 again, but the wrapper computes its update in the parameters' dtype."""
    move_biases(self, seen)
    for buffer in self.model.buffers():
        buffer.copy_(buffer.to(self.model.activations))


@broken(
    Trainer,
    "move_biases",
    "MOE-06l[half-and-double]: layers.3.mixer.router.bias: in step 1 two experts moved 1 rates apart, expected 2 or 4",
    "MOE-06l[the-first-rests]: layers.3.mixer.router.bias: in step 1 two experts moved 0 rates apart, expected 1 or 2",
)
def takes_the_rate_of_the_first_layer(move_biases, self, seen):
    """The hook reads the rate of the first layer with experts, and takes it for all layers."""
    named = sorted(name for name, _ in self.model.named_buffers() if name.endswith("router.bias"))
    own, first = self.rates, self.rates.get(named[0], 1.0) if named else 1.0
    self.rates = dict.fromkeys(named, first)
    move_biases(self, seen)
    self.rates = own


@broken(
    Trainer,
    "move_biases",
    "MOE-06l[the-second-rests]: layers.1.mixer.router.bias: in step 1 two experts moved 0 rates apart, expected 1 or 2",
)
def stops_at_a_layer_without_a_rate(move_biases, self, seen):
    """The hook collects the counts of all layers, and returns at one whose bias has no rate."""
    if all(self.rates.get(name, 1.0) for name, _ in self.model.named_buffers()):
        move_biases(self, seen)

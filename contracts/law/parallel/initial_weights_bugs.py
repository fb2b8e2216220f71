"""Initial weights that depend on more than the seed, the name and the shape, or start training badly."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from contracts.law._bugs.numeric import Initializer, Trainer, broken, derived, with_attributes
from contracts.spec import Recipe
from contracts.stacks.reference.model.init import STD


@derived("PAR-04c[depths-and-streams]: in the other model differs", bugs=("INI-13",))
class DrawsInTheOrderOfCreation(Initializer):
    """The whole model draws from one generator: a tensor starts elsewhere when another one is made before it."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.stream = torch.Generator().manual_seed(recipe.seed)

    def generator(self, name: str) -> torch.Generator:
        return self.stream


@broken(Initializer, "generator", "PAR-04a[streams-and-depths]: the second time")
def draws_from_the_process(generator, self, name):
    """Weights are drawn from the process's global generator, whatever its state."""
    return torch.Generator().manual_seed(int(torch.randint(2**31, ())))


@broken(Initializer, "generator", "PAR-04a[custom-mixers]: do not depend on the seed")
def ignores_the_seed(generator, self, name):
    """Every run starts from the same weights: the error bars of five seeds equal one's."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


@broken(Initializer, "generator", "PAR-04b[streams-and-depths]: start alike", bugs=("INI-03",))
def layers_start_alike(generator, self, name):
    """The layer number is not part of the seed: all layers of a kind start alike."""
    return generator(self, re.sub(r"layers\.\d+", "layers", name))


@broken(Initializer, "matrix", "PAR-04b[custom-mixers]: experts.w1[0] and")
def experts_start_alike(matrix, self, name, shape, std):
    """One expert is drawn and copied: twelve experts train as one."""
    if ".experts." not in name:
        return matrix(self, name, shape, std)
    return matrix(self, name, shape[1:], std).expand(shape).clone()


@broken(Initializer, "generator", "PAR-04b[bf16]: start alike")
def seeds_by_the_last_name(generator, self, name):
    """Seeds use only the name inside the layer."""
    return generator(self, name.rsplit(".", 3)[-1] if "mtp" in name or "norm" in name else name.split(".", 2)[-1])


@broken(Initializer, "generator", "PAR-04c[deeper]: in the other model differs")
def seeds_by_the_depth(generator, self, name):
    """A layer's seed counts from the end: in a deeper model every layer starts elsewhere."""
    return generator(self, f"{self.recipe.depth}/{name}")


@broken(Initializer, "matrix", "PAR-04c[another-dtype]: in the other model differs")
def draws_in_the_dtype(matrix, self, name, shape, std):
    """Weights are drawn in the dtype of the activations."""
    drawn = matrix(self, name, shape, std)
    return drawn.to(torch.bfloat16).float() if self.recipe.dtype == "bf16" else drawn


@broken(Initializer, "std", "PAR-04d[every-family]: lm loss starts at")
def keeps_the_frameworks_scale(std, self, owner, last):
    """The framework's default standard deviation, 1 for an embedding, stays."""
    return 1.0


@broken(Initializer, "matrix", "PAR-04d[streams-and-depths]: lm loss starts at", bugs=("INI-06",))
def scales_by_the_wrong_fan(matrix, self, name, shape, std):
    """The output projection is scaled by its outputs instead of its inputs."""
    return matrix(self, name, shape, (2 / shape[0]) ** 0.5 if name.startswith(("head", "embedding")) else std)


@broken(Initializer, "fill", "PAR-04d[streams-and-depths]: streams.alpha are not finite", bugs=("INI-10",))
def forgets_new_parameters(fill, self, model, given=()):
    """A parameter that is missing from the initialiser's list keeps whatever was in memory."""
    fill(self, model, given)
    for name, each in model.named_parameters():
        if name.endswith("alpha"):
            with torch.no_grad():
                each.fill_(float("nan"))  # what torch.empty may hold


@broken(Initializer, "tensor", "PAR-04d[a-wide-vocabulary]: k_norm.weight do not start at 1")
def norms_start_at_zero(tensor, self, name, shape):
    """Norm weights start at 0, as for a norm written 1 + weight: attention starts uniform and stays so."""
    return torch.zeros(shape) if name.endswith("k_norm.weight") else tensor(self, name, shape)


@broken(Initializer, "state_space", "PAR-04e[decay]: A_log gives", bugs=("INI-08",))
def heads_that_never_forget(state_space, self, name, last, shape):
    """A_log starts at 1e-6 and up: the slowest heads neither forget nor learn to."""
    if last != "A_log":
        return state_space(self, name, last, shape)
    drawn = self.uniform(name, shape, 1e-6, 16.0)
    drawn.view(-1)[0] = 1e-6
    return drawn.to(torch.bfloat16).float().log()


@broken(Initializer, "state_space", "PAR-04e[step-custom-mixers]: dt_bias gives 0.693")
def steps_start_at_zero(state_space, self, name, last, shape):
    """dt_bias starts at 0 like any bias: time steps are 0.69 instead of 0.001 to 0.1."""
    return torch.zeros(shape) if last == "dt_bias" else state_space(self, name, last, shape)


@broken(
    Initializer,
    "state_space",
    "PAR-04j[skip-custom-mixers]: D starts off by 1 from one",
    "PAR-04j[skip]: D starts off by 1 from one",
)
def skips_start_at_zero(state_space, self, name, last, shape):
    """Whatever is a vector and no norm starts at 0, D as well."""
    return torch.zeros(shape) if last == "D" else state_space(self, name, last, shape)


@broken(Initializer, "tensor", "PAR-04j[recurrence]: W starts off by 1.0")
def draws_the_transition(tensor, self, name, shape):
    """The transition of a recurrence is drawn like any matrix: its state fades within one token."""
    return self.matrix(name, shape, STD) if name.endswith(".W") else tensor(self, name, shape)


@broken(Initializer, "bias", "PAR-04j[biases]: bias starts off by 1 from zero")
def starts_every_bias_at_one(bias, self, last, shape):
    """Biases begin as the scales of norms do."""
    return torch.ones(shape)


@broken(Initializer, "bias", "PAR-04j[offsets]: bias starts off by 1 from one")
def starts_every_bias_at_zero(bias, self, last, shape):
    """Over-correction: what is called a bias begins at 0, those that Mamba-3 adds to B and C as well."""
    return torch.zeros(shape)


@broken(Initializer, "mixing", "PAR-04j[streams]: alpha starts off by 0.99 from 0.01")
def opens_the_gates_of_streams(mixing, self, name, last, shape):
    """Gates begin at 1: the drawn projection mixes the streams from the first step on."""
    return torch.ones(shape) if last == "alpha" else mixing(self, name, last, shape)


@broken(Initializer, "uniform", "PAR-04k[streams-and-depths]: is drawn around 0.2")
def draws_from_zero_up(uniform, self, name, shape, low, high):
    """`torch.rand` in place of a uniform draw around 0."""
    return uniform(self, name, shape, 0.0 if low == -high else low, high)


@broken(
    Initializer, "matrix", "PAR-04h[every-family]: no weight of E experts starts smaller than by 1.0", bugs=("INI-09",)
)
def scales_mixers_alone(matrix, self, name, shape, std):
    """A comparison that is never true for experts leaves them the usual scale, however deep the model is."""
    return matrix(self, name, shape, STD if ".mixer.experts." in name else std)


@broken(Initializer, "std", "PAR-04h[dense]: no weight of E starts smaller than by", bugs=("INI-09",))
def scales_attention_alone(std, self, owner, last):
    """The initialiser knows the output projection of attention, and takes that of an MLP for any matrix."""
    return STD if last == "w2" or owner == "w2" else std(self, owner, last)


@broken(Trainer, "build", "PAR-04i[every-letter]: without given weights lm is")
def initialises_once_more(build, self):
    """A hook of the framework runs after the stack's own initialiser, over the classes that it knows."""
    model = build(self)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=STD, generator=torch.Generator().manual_seed(self.recipe.seed))
    return model


@broken(Trainer, "build", "PAR-04i[every-letter-in-bf16]: without given weights ", leanest="")
def starts_some_norms_elsewhere(build, self):
    """The trainer's own way of building a scan leaves its norm at another value than the model that is shown."""
    model = build(self)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.endswith("out_norm.weight"):
                each.fill_(0.5)
    return model


@broken(Initializer, "generator", "PAR-04l[dense]: seeds 0 and 1234 give the same initial weights")
def takes_a_seed_of0_for_none(generator, self, name):
    """`seed or 1234`: a seed of 0 is the default seed."""
    if not self.recipe.seed:
        return Initializer(replace(self.recipe, seed=1234)).generator(name)
    return generator(self, name)


class _LoadsWhatFits(Trainer):
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        fits = {name for name, each in into.items() if name in values and values[name].shape == each.shape}
        super().put({name: values[name] for name in fits}, {name: into[name] for name in fits}, what)


with_attributes(
    "LoadsWhatFits",
    "`strict=False`: what has another name or shape is left out without a word.",
    "PAR-04m[another-shape]: was accepted, expected a refusal",
    "PAR-04m[a-foreign-name]: was accepted, expected a refusal",
    owner=_LoadsWhatFits,
)


@broken(_LoadsWhatFits, "put", "PAR-04m[one-is-missing]: was not given")
def loads_into_empty_memory(put, self, values, into, what):
    """A model that will be loaded is not initialised: a weight that the file lacks keeps what its memory held."""
    for name in into.keys() - values.keys():
        torch.nn.init.normal_(into[name], std=0.5)
    put(self, values, into, what)

"""Initial weights that depend on more than the seed, the name and the shape, or start training badly."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from contracts.contract import mutant
from contracts.mutants._support.replaced_parts import Exchanged
from contracts.mutants._support.trainer import Trained
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.model.hybrid_model import Model
from contracts.stacks.reference.model.init import STD, Initializer
from contracts.stacks.reference.training.trainer import Trainer


class OneStream(Initializer):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.stream = torch.Generator().manual_seed(recipe.seed)

    def generator(self, name: str) -> torch.Generator:
        return self.stream


@mutant(of="PAR-04c", case="depths-and-streams", says="in the other model differs", bugs=("INI-13",))
class DrawsInTheOrderOfCreation(Exchanged):
    """The whole model draws from one generator: a tensor starts elsewhere when another one is made before it."""

    exchange = {"initial": OneStream}


class OfTheProcess(Initializer):
    def generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(int(torch.randint(2**31, ())))


@mutant(of="PAR-04a", case="streams-and-depths", says="the second time")
class DrawsFromTheProcess(Exchanged):
    """Weights are drawn from the process's global generator, whatever its state."""

    exchange = {"initial": OfTheProcess}


class NoSeed(Initializer):
    def generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(name.encode()))


@mutant(of="PAR-04a", case="custom-mixers", says="do not depend on the seed")
class IgnoresTheSeed(Exchanged):
    """Every run starts from the same weights: the error bars of five seeds are those of one."""

    exchange = {"initial": NoSeed}


class SeedOnly(Initializer):
    def generator(self, name: str) -> torch.Generator:
        return super().generator(re.sub(r"layers\.\d+", "layers", name))


@mutant(of="PAR-04b", case="streams-and-depths", says="start alike", bugs=("INI-03",))
class LayersStartAlike(Exchanged):
    """The layer number is not part of the seed: all layers of a kind start alike."""

    exchange = {"initial": SeedOnly}


class OneExpert(Initializer):
    def matrix(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        if ".experts." not in name:
            return super().matrix(name, shape, std)
        return super().matrix(name, shape[1:], std).expand(shape).clone()


@mutant(of="PAR-04b", case="custom-mixers", says="experts.w1[0] and")
class ExpertsStartAlike(Exchanged):
    """One expert is drawn and copied: twelve experts train as one."""

    exchange = {"initial": OneExpert}


class BySizeAlone(Initializer):
    def generator(self, name: str) -> torch.Generator:
        return super().generator(name.rsplit(".", 3)[-1] if "mtp" in name or "norm" in name else name.split(".", 2)[-1])


@mutant(of="PAR-04b", case="bf16", says="start alike")
class SeedsByTheLastName(Exchanged):
    """Seeds use only the name inside the layer."""

    exchange = {"initial": BySizeAlone}


class ByDepth(Initializer):
    def generator(self, name: str) -> torch.Generator:
        return super().generator(f"{self.recipe.depth}/{name}")


@mutant(of="PAR-04c", case="deeper", says="in the other model differs")
class SeedsByTheDepth(Exchanged):
    """A layer's seed counts from the end: in a deeper model every layer starts elsewhere."""

    exchange = {"initial": ByDepth}


class ByDtype(Initializer):
    def matrix(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        drawn = super().matrix(name, shape, std)
        return drawn.to(torch.bfloat16).float() if self.recipe.dtype == "bf16" else drawn


@mutant(of="PAR-04c", case="another-dtype", says="in the other model differs")
class DrawsInTheDtype(Exchanged):
    """Weights are drawn in the dtype of the activations."""

    exchange = {"initial": ByDtype}


class Unscaled(Initializer):
    def std(self, owner: str, last: str) -> float:
        return 1.0


@mutant(of="PAR-04d", case="every-family", says="lm loss starts at")
class KeepsTheFrameworksScale(Exchanged):
    """The framework's default standard deviation, 1 for an embedding, stays."""

    exchange = {"initial": Unscaled}


class FanOut(Initializer):
    def matrix(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        return super().matrix(name, shape, (2 / shape[0]) ** 0.5 if name.startswith(("head", "embedding")) else std)


@mutant(of="PAR-04d", case="streams-and-depths", says="lm loss starts at", bugs=("INI-06",))
class ScalesByTheWrongFan(Exchanged):
    """The output projection is scaled by its outputs instead of its inputs."""

    exchange = {"initial": FanOut}


class Skips(Initializer):
    def fill(self, model: nn.Module, given: Collection[str] = ()) -> None:
        super().fill(model, given)
        for name, each in model.named_parameters():
            if name.endswith("alpha"):
                with torch.no_grad():
                    each.fill_(float("nan"))  # what torch.empty may hold


@mutant(of="PAR-04d", case="streams-and-depths", says="streams.alpha are not finite", bugs=("INI-10",))
class ForgetsNewParameters(Exchanged):
    """A parameter that is missing from the initialiser's list keeps whatever was in memory."""

    exchange = {"initial": Skips}


class NormsAtZero(Initializer):
    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape) if name.endswith("k_norm.weight") else super().tensor(name, shape)


@mutant(of="PAR-04d", case="a-wide-vocabulary", says="k_norm.weight do not start at 1")
class NormsStartAtZero(Exchanged):
    """Norm weights start at 0, as for a norm written 1 + weight: attention starts uniform and stays so."""

    exchange = {"initial": NormsAtZero}


class FrozenHeads(Initializer):
    def state_space(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        if last != "A_log":
            return super().state_space(name, last, shape)
        drawn = self.uniform(name, shape, 1e-6, 16.0)
        drawn.view(-1)[0] = 1e-6
        return drawn.to(torch.bfloat16).float().log()


@mutant(of="PAR-04e", case="decay", says="A_log gives", bugs=("INI-08",))
class HeadsThatNeverForget(Exchanged):
    """A_log starts at 1e-6 and up: the slowest heads neither forget nor learn to."""

    exchange = {"initial": FrozenHeads}


class ZeroSteps(Initializer):
    def state_space(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape) if last == "dt_bias" else super().state_space(name, last, shape)


@mutant(of="PAR-04e", case="step-custom-mixers", says="dt_bias gives 0.693")
class StepsStartAtZero(Exchanged):
    """dt_bias starts at 0 like any bias: time steps are 0.69 instead of 0.001 to 0.1."""

    exchange = {"initial": ZeroSteps}


class _ZeroSkips(Initializer):
    def state_space(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape) if last == "D" else super().state_space(name, last, shape)


@mutant(of="PAR-04j", case="skip", says="D starts off by 1 from one")
@mutant(of="PAR-04j", case="skip-custom-mixers", says="D starts off by 1 from one")
class SkipsStartAtZero(Exchanged):
    """Whatever is a vector and no norm starts at 0, D as well."""

    exchange = {"initial": _ZeroSkips}


class _DrawnRecurrence(Initializer):
    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.matrix(name, shape, STD) if name.endswith(".W") else super().tensor(name, shape)


@mutant(of="PAR-04j", case="recurrence", says="W starts off by 1.0")
class DrawsTheTransition(Exchanged):
    """The transition of a recurrence is drawn like any matrix: its state fades within one token."""

    exchange = {"initial": _DrawnRecurrence}


class _OneForEveryBias(Initializer):
    def bias(self, last: str, shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape)


@mutant(of="PAR-04j", case="biases", says="bias starts off by 1 from zero")
class StartsEveryBiasAtOne(Exchanged):
    """Biases begin as the scales of norms do."""

    exchange = {"initial": _OneForEveryBias}


class _ZeroForEveryBias(Initializer):
    def bias(self, last: str, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape)


@mutant(of="PAR-04j", case="offsets", says="bias starts off by 1 from one")
class StartsEveryBiasAtZero(Exchanged):
    """Over-correction: what is called a bias begins at 0, those that Mamba-3 adds to B and C as well."""

    exchange = {"initial": _ZeroForEveryBias}


class _WideOpen(Initializer):
    def mixing(self, name: str, last: str, shape: tuple[int, ...]) -> Tensor:
        return torch.ones(shape) if last == "alpha" else super().mixing(name, last, shape)


@mutant(of="PAR-04j", case="streams", says="alpha starts off by 0.99 from 0.01")
class OpensTheGatesOfStreams(Exchanged):
    """Gates begin at 1: the drawn projection mixes the streams from the first step on."""

    exchange = {"initial": _WideOpen}


class _OneSided(Initializer):
    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        return super().uniform(name, shape, 0.0 if low == -high else low, high)


@mutant(of="PAR-04k", case="streams-and-depths", says="is drawn around 0.2")
class DrawsFromZeroUp(Exchanged):
    """`torch.rand` in place of a uniform draw around 0."""

    exchange = {"initial": _OneSided}


class ForgetsExperts(Initializer):
    def matrix(self, name: str, shape: tuple[int, ...], std: float) -> Tensor:
        return super().matrix(name, shape, STD if ".mixer.experts." in name else std)


@mutant(of="PAR-04h", case="every-family", says="no weight of E experts starts smaller than by 1.0", bugs=("INI-09",))
class ScalesMixersAlone(Exchanged):
    """A comparison that is never true for experts leaves them the usual scale, however deep the model is."""

    exchange = {"initial": ForgetsExperts}


class ScalesByItsClass(Initializer):
    def std(self, owner: str, last: str) -> float:
        return STD if last == "w2" or owner == "w2" else super().std(owner, last)


@mutant(of="PAR-04h", case="dense", says="no weight of E starts smaller than by", bugs=("INI-09",))
class ScalesAttentionAlone(Exchanged):
    """The initialiser knows the output projection of attention, and takes that of an MLP for any matrix."""

    exchange = {"initial": ScalesByItsClass}


class _InitialisesBehind(Trainer):
    def build(self) -> Model:
        model = super().build()
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=STD, generator=torch.Generator().manual_seed(self.recipe.seed))
        return model


@mutant(of="PAR-04i", case="every-letter", says="without given weights lm is")
class InitialisesOnceMore(Trained):
    """A hook of the framework runs behind the stack's own initialiser, over the classes that it knows."""

    trains = _InitialisesBehind


class _StartsNormsElsewhere(Trainer):
    def build(self) -> Model:
        model = super().build()
        with torch.no_grad():
            for name, each in model.named_parameters():
                if name.endswith("out_norm.weight"):
                    each.fill_(0.5)
        return model


@mutant(of="PAR-04i", case="every-letter-in-bf16", says="without given weights ", leanest="")
class StartsSomeNormsElsewhere(Trained):
    """The trainer's own way of building a scan leaves its norm at another value than the model that is shown."""

    trains = _StartsNormsElsewhere


class _NoneForNothing(Initializer):
    def generator(self, name: str) -> torch.Generator:
        if not self.recipe.seed:
            return Initializer(replace(self.recipe, seed=1234)).generator(name)
        return super().generator(name)


@mutant(of="PAR-04l", case="dense", says="seeds 0 and 1234 give the same initial weights")
class TakesASeedOf0ForNone(Exchanged):
    """`seed or 1234`: a seed of 0 is the default seed."""

    exchange = {"initial": _NoneForNothing}


class _LoadsWhatFits(Trainer):
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        fits = {name for name, each in into.items() if name in values and values[name].shape == each.shape}
        super().put({name: values[name] for name in fits}, {name: into[name] for name in fits}, what)


@mutant(of="PAR-04m", case="a-foreign-name", says="was accepted, expected a refusal")
@mutant(of="PAR-04m", case="another-shape", says="was accepted, expected a refusal")
class LoadsWhatFits(Trained):
    """`strict=False`: what has another name or shape is left out without a word."""

    trains = _LoadsWhatFits


class _LoadsIntoEmptyMemory(_LoadsWhatFits):
    def put(self, values: Mapping[str, Tensor], into: Mapping[str, Tensor], what: str) -> None:
        for name in into.keys() - values.keys():
            torch.nn.init.normal_(into[name], std=0.5)
        super().put(values, into, what)


@mutant(of="PAR-04m", case="one-is-missing", says="was not given")
class LoadsIntoEmptyMemory(Trained):
    """A model that will be loaded is not initialised: a weight that the file lacks keeps what its memory held."""

    trains = _LoadsIntoEmptyMemory

"""Trainers that resume as another run, or as the same run from another place."""

import importlib
import random
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from contracts.law._bugs.numeric import Batch, ModelOutput, Optimizer, Reference, Trainer, broken, derived, rng_state
from contracts.stacks.reference.optim.schedule import weight_decay

Position = Mapping[str, int]


@derived("CKPT-01a[adamw]: buffers: the state layers.1.mixer.router.bias differs", bugs=("EXB-04",), leanest="")
class LeavesBuffersBehind(Trainer):
    """The selection bias is a non-persistent buffer: it is zero again after each resume."""

    def state(self) -> dict[str, Tensor]:
        return {name: each for name, each in super().state().items() if not name.endswith("router.bias")}

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        biases = {f"buffers/{n}": each for n, each in self.model.named_buffers() if n.endswith("router.bias")}
        super().load({**biases, **state}, position)


@derived("CKPT-01a[adamw]: after 1 loads, step 3: lr is", bugs=("RSM-02",))
class RestartsTheSchedule(Trainer):
    """The scheduler is not saved, and warms up again."""

    began = 0

    def resume(self, folder: str) -> None:
        super().resume(folder)
        started, rate = self.number, self.rate
        self.rate = lambda optim, number: rate(optim, number - started)


@derived("CKPT-01a[dense-half]: after 1 loads, step 3: losses is")
class LeavesItsCopiesStale(Trainer):
    """The 16-bit copies of the weights follow an update and not a load: the first step after it starts anew."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.copies = self.masters()

    def masters(self) -> dict[str, Tensor]:
        return {name: each.detach().clone() for name, each in self.model.named_parameters()}

    def passes(self, window: Sequence[Batch], counts: Mapping[str, Tensor]) -> list[ModelOutput]:
        masters = self.masters()
        self.put(self.copies, dict(self.model.named_parameters()), "weights")
        found = super().passes(window, counts)
        self.put(masters, dict(self.model.named_parameters()), "weights")
        return found

    def move_biases(self, seen: Mapping[str, Tensor]) -> None:
        super().move_biases(seen)
        self.copies = self.masters()


@broken(
    Trainer, "load", "CKPT-01a[dense-two-rates]: after 1 loads, step 3: weights: the state embedding.weight differs"
)
def matches_groups_by_decay(load, self, state, position):
    """A load looks for the saved group by its decay: of two groups that differ in their rate, one gets the other's."""
    load(self, state, position)
    groups = [group for rule in self.optimizer.rules.values() for group in rule.param_groups]
    last = {group["weight_decay"]: group["share"] for group in groups}
    for group in groups:
        group["share"] = last[group["weight_decay"]]


@broken(Trainer, "put", "CKPT-01a[every-kind]: after 1 loads, step 2: losses is")
def skips_tensors_of_newer_kinds(put, self, values, into, what):
    """A load that is not strict matches names by a list of known modules: maps of streams and indexers start anew."""
    known = {name for name in into if ".streams." not in name and ".indexer." not in name}
    put(self, {name: values[name] for name in known}, {name: into[name] for name in known}, what)


@broken(
    Trainer,
    "resume",
    "CKPT-01a[muon-accumulated]: after 1 loads the run began after step 0, expected 1",
    "CKPT-01a[dense-accumulated]: after 1 loads the run began after step 0, expected 2",
    bugs=("RSM-03",),
)
def counts_steps_from_the_load(resume, self, folder):
    """Steps are numbered from 0 after a load: logs and checkpoints of the second part overwrite those of the first."""
    resume(self, folder)
    self.number = 0


@broken(Optimizer, "load", "CKPT-01a[adamw]: /step differs")
def corrects_the_bias_anew(load, self, state):
    """Moments are loaded but their step count is not: after a load their bias is corrected as at the first steps."""
    load(self, {n: torch.zeros_like(each) if n.endswith("/step") else each for n, each in state.items()})


@broken(Optimizer, "load", "CKPT-01a[mtp-without-clipping]: /step differs", bugs=("RSM-40",))
def counts_a_step_that_was_none(load, self, state):
    """A dummy optimizer step that allocates the state before the load counts as a step."""
    load(self, {n: each + 1 if n.endswith("/step") else each for n, each in state.items()})


@broken(Optimizer, "load", "CKPT-01a[adamw]: /exp_avg differs", bugs=("RSM-66",))
def loads_weights_alone(load, self, state):
    """The optimizer's state is read but not used: it begins at zero."""
    load(self, {})


@broken(Optimizer, "load", "CKPT-01a[muon-accumulated]: /momentum_buffer differs", bugs=("RSM-57",))
def loads_one_rule_alone(load, self, state):
    """Of two optimizers only the first is loaded: Muon's momentum begins at zero."""
    load(self, {n: torch.zeros_like(each) if "momentum" in n else each for n, each in state.items()})


@broken(Trainer, "step_over", "CKPT-01a[dense-rising-decay]: weights: the state")
def begins_its_decay_anew(step_over, self, window, *given):
    """The schedule of the decay counts the steps of this process."""
    self.own = getattr(self, "own", 0) + 1
    self.decay = lambda optim, step: weight_decay(optim, self.own)
    return step_over(self, window, *given)


@derived("CKPT-01a[muon-accumulated]: weights: the state", bugs=("RSM-17",))
class HoldsOldGroups(Optimizer):
    """After a load the scheduler still writes to the parameter groups from before it. One of two optimizers keeps its
    initial learning rate, while the logged rate is right.
    """

    loaded = False

    def load(self, state: Mapping[str, Tensor]) -> None:
        super().load(state)
        self.loaded = True

    def step(self, lr: float) -> None:
        if not self.loaded:
            return super().step(lr)
        for rule in self.rules.values():
            for group in rule.param_groups:
                group["lr"] = lr if rule is self.rules["adamw"] else self.optim.lr
            rule.step()
        return None


@broken(Optimizer, "load", "CKPT-01a[adamw]: /exp_avg differs", bugs=("RSM-10",))
def matches_state_by_order(load, self, state):
    """State is saved in the order of the groups and loaded in that of the modules: parameters of equal shape are
    swapped.
    """
    kinds = {}
    for name, each in state.items():
        kinds.setdefault((name.rpartition("/")[2], tuple(each.shape)), []).append(name)
    turned = {
        name: state[other]
        for names in kinds.values()
        for name, other in zip(names, [*names[1:], names[0]], strict=True)
    }
    load(self, turned)


@broken(Optimizer, "load", "CKPT-01a[muon-accumulated]: /exp_avg differs")
def rounds_the_moments(load, self, state):
    """torch.optim's load_state_dict casts state to the parameter's dtype: float32 moments come back as bfloat16."""
    load(self, {n: each if n.endswith("/step") else each.bfloat16().to(each.dtype) for n, each in state.items()})


@derived("CKPT-01a[adamw]: after 2 loads, step 5: losses is", bugs=("RSM-01",))
class SavesWhatItLoaded(Trainer):
    """The state dict of the first load is cached and saved again: only the second resume is wrong."""

    held: dict[str, Tensor] | None = None

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load(state, position)
        self.held = {name: each.clone() for name, each in state.items()}

    def state(self) -> dict[str, Tensor]:
        return self.held or super().state()


@broken(Trainer, "position", "CKPT-01a[adamw]: after 1 loads, step 3: samples is", bugs=("RSM-28",), leanest="")
def looks_ahead(position, self):
    """The loader has prefetched the next batch and counts it as trained: each resume loses one batch."""
    return position(self) | {"consumed": self.consumed + self.recipe.batch.total}


@broken(Trainer, "load", "CKPT-01a[muon-accumulated]: after 1 loads, step 2: samples is", bugs=("RSM-26",), leanest="")
def begins_the_data(load, self, state, position):
    """The sampler starts again: the first batches are trained twice, the last ones never."""
    load(self, state, position)
    self.consumed = 0


@broken(Trainer, "put", "CKPT-01a[adamw]: after 1 loads, step 3: losses is", bugs=("RSM-52",))
def loses_the_experts(put, self, values, into, what):
    """Experts are loaded into a temporary copy; the experts that train keep their initial weights."""
    copies = {name: each.clone() if "experts" in name else each for name, each in into.items()}
    put(self, values, copies, what)


@broken(Trainer, "restore_generators", "CKPT-01a[adamw]: rng: the state torch differs", bugs=("RSM-22",))
def draws_afterwards(restore_generators, self, states):
    """The data loader is built after the generators are restored, and draws from them."""
    restore_generators(self, states)
    torch.rand(1)  # a seed for the loader's workers


@broken(Trainer, "restore_generators", "CKPT-01a[adamw]: rng: the state numpy differs")
def leaves_the_generator_of_numpy(restore_generators, self, states):
    """The generators of torch and of Python are loaded, and not NumPy's, from which data loaders draw."""
    restore_generators(self, {name: each for name, each in states.items() if name != "numpy"})


@broken(Trainer, "restore_generators", "CKPT-01a[adamw]: rng: the state python differs")
def drops_the_spare(restore_generators, self, states):
    """Saves the words of Python's generator, but not the second number of a normal pair that it holds back."""
    restore_generators(self, states)
    version, words, _ = random.getstate()
    random.setstate((version, words, None))


@broken(Trainer, "restore_generators", "CKPT-01a[adamw]: rng: the state numpy differs")
def drops_the_spare_of_numpy(restore_generators, self, states):
    """Likewise of NumPy's."""
    restore_generators(self, states)
    numbers = importlib.import_module("numpy.random")  # which need not be installed
    numbers.set_state(numbers.get_state()[:3])


@broken(Trainer, "saved", "CKPT-01b[adamw]: with a save after each step, step 1: weights:")
def saves_through_half(saved, self):
    """Casts the weights to the file's dtype in place."""
    for name, each in self.state().items():
        if name.startswith("weights/"):
            each.copy_(each.bfloat16())
    return saved(self)


@broken(Trainer, "save", "CKPT-01b[muon]: with a save after each step, step 1: rng: the state python differs")
def names_by_chance(save, self, folder):
    """The save draws from the generator that the data uses."""
    random.random()  # for the name of a temporary file
    save(self, folder)


@broken(Trainer, "resume", "CKPT-01a[dense-tied]: after 1 loads, step 3: grad_norm is", bugs=("RSM-54",), leanest="")
def unties_after_a_load(resume, self, folder):
    """The load gives the output projection a tensor of its own, and nobody ties it to the embedding again."""
    resume(self, folder)
    if self.model.head is None:
        head = torch.nn.Linear(self.recipe.hidden, self.recipe.vocab, bias=False)
        head.weight = torch.nn.Parameter(self.model.embedding.weight.detach().clone())
        vars(self.model)["head"] = head  # no submodule: neither its optimizer nor a checkpoint knows it


@broken(Reference, "train", "CKPT-01a[dense]: rng: the state", bugs=("RSM-21",), leanest="")
def restores_generators_of_savers_only(train, self, session):
    """The target of the load is built from the options of the new run: one that does not save has no generators."""
    before, restore = rng_state.capture(), Trainer.restore_generators

    def own_or_none(trainer, states):
        restore(trainer, states if session.save else before)

    with mock.patch.object(Trainer, "restore_generators", own_or_none):
        return train(self, session)


@derived("CKPT-01a[dense-biased]: after 1 loads, step 3: losses is")
class SavesMatricesAndNorms(Trainer):
    """A list of what is saved names weights; biases begin anew at each load."""

    def state(self) -> dict[str, Tensor]:
        return {name: each for name, each in super().state().items() if not _is_bias(name)}

    def load(self, state: Mapping[str, Tensor], position: Position) -> None:
        super().load({**{name: each for name, each in super().state().items() if _is_bias(name)}, **state}, position)


def _is_bias(name: str) -> bool:
    return name.startswith("weights/") and name.endswith(".bias")

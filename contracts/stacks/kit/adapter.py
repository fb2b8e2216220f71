"""A stack in plain PyTorch as a party, out of a few methods: names, one block, one run."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contracts.instruments import numerics
from contracts.spec import (
    Abilities,
    Arrays,
    BlockCall,
    BlockRun,
    Built,
    Execution,
    Lack,
    Layout,
    Mode,
    NotOffered,
    Pass,
    Recipe,
    Session,
    Shape,
    Tokens,
    Trained,
    needs,
    questions,
)
from contracts.spec import pattern as patterns
from contracts.stacks.kit.declining import declined
from contracts.stacks.kit.links import Link, fitting, same, to_canonical, to_theirs
from contracts.stacks.kit.runs import Run, gradients, gradients_of, packed, trained
from contracts.stacks.kit.tables import built
from contracts.stacks.kit.worlds import by_itself, forget_meshes

OF_A_MODEL = frozenset({"unpaired", "tied", "recompute", "bf16", "fp16"})
"""What a recipe says of a whole model; a single block is asked in the dtypes of its weights and its input."""

ROUTED = ("experts", "gates", "counts", "dropped", "selected")
LOSSES = ("aux", "z")


class Steps(Run):
    """A `Run` of a module that makes single passes too."""

    module: nn.Module

    def parameters(self) -> Mapping[str, Tensor]:
        """Each once: a tied one by the name that a link leads to."""
        linked, found = {link.theirs for link in self.links}, dict[int, tuple[str, Tensor]]()
        for name, each in self.module.named_parameters(remove_duplicate=False):
            if name in linked or id(each) not in found:
                found[id(each)] = (name, each)
        return dict(found.values())

    @abstractmethod
    def forward(self, batch: Tokens, backward: bool) -> tuple[Tensor, Mapping[str, float]]:
        """Logits (B, T, vocab) and losses of one pass; with `backward` the gradients are left on the parameters."""


class Adapter(ABC):
    """The answers about blocks and training of a stack in plain PyTorch.

    Set `name`, `version` and `abilities`, and override the methods below. A case that needs more than the abilities
    have is declined with their reasons before a method is called. Any other question is answered by a method of its
    name.
    """

    name: str
    version: str
    abilities: Abilities
    layouts: frozenset[Layout] = frozenset()
    labels: Mapping[str, str] = {}
    conventions: Mapping[str, str] = {}
    autocasts: bool | None = None
    """Whether its weights are float32 under bfloat16 activations, and torch.autocast is what brings them together.
    False is a stack without autocast; None has not been looked at."""
    outside: Mapping[str, str] = {}
    """Canonical name → the stack's, of what stands outside the layers."""

    @property
    def offers(self) -> frozenset[str]:
        return frozenset(name for name in questions() if callable(getattr(self, name, None)))

    # what a stack says
    def outside_of(self, recipe: Recipe) -> Mapping[str, str]:
        """What stands outside the layers of a model: `outside`, unless its names depend on the recipe."""
        return self.outside

    @abstractmethod
    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        """The tensors of the block of a letter, its norm included, with names inside of its layer on both sides."""

    @abstractmethod
    def layer(self, number: int) -> str:
        """The prefix in a whole model of what our layer `number` is a part of, `blocks.3.` for instance."""

    @abstractmethod
    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        """A layer with that block, on the default device; it may have more."""

    @abstractmethod
    def branch(
        self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Only the block: its norm and its mixer or MLP, without the residual connection.

        With it, if the stack says so, what was routed: `experts` and `gates` of each token, `counts` of each expert,
        as `BlockRun.seen` has them; one row a token will do. Entries that the stack leaves out are not asked of it. And
        `aux` and `z`, the router's losses before their weight.
        """

    @abstractmethod
    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        """A fresh run of the stack's own trainer, before its first step; on the meta device it is never stepped."""

    # what is asked
    def block_weights(self, recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
        letter, links = self._block(recipe, layer, mode)
        with torch.device("meta"):
            held = self.block(letter, recipe).state_dict()
        fitting(links, held)
        ours = to_canonical(held, links)
        dtypes: dict[str, Any] = {name: str(each.dtype).removeprefix("torch.") for name, each in ours.items()}
        return {name: Shape(dtype=dtypes[name], shape=tuple(each.shape)) for name, each in ours.items()}

    def run_block(self, call: BlockCall) -> BlockRun:
        letter, links = self._block(call.recipe, call.layer, call.mode)
        if call.x.dtype == "float64":
            declined(self.name, self.abilities, {"float64"}, "run_block")
        x_BTD, weights = numerics.tensor(call.x, strided=call.strided), numerics.tensors(call.weights)
        if call.device != "cpu" or call.kernels:
            raise NotOffered(f"{self.name}: it is asked on a CPU, with its own operations", "device")
        if call.padding is not None or call.state or call.chunk is not None or call.router is not None:
            raise NotOffered(f"{self.name}: its blocks are asked without padding, state, chunks and a router's dtype")
        dtypes = {each.dtype for each in weights.values()}
        mixed = bool(self.autocasts) and (x_BTD.dtype, dtypes) == (torch.bfloat16, {torch.float32})
        if dtypes != {x_BTD.dtype} and not mixed:
            kind: Lack = "adapter" if self.autocasts is None else "stack"
            raise NotOffered(f"{self.name}: weights and activations have one dtype", kind)
        module = self.block(letter, call.recipe).to(torch.float32 if mixed else x_BTD.dtype)
        fitting(links, module.state_dict())
        module.load_state_dict(to_theirs(weights, links), strict=False)
        x_BTD.requires_grad_(call.dy is not None)
        strided = not x_BTD.is_contiguous()
        alone = torch.zeros(x_BTD.shape[:2], dtype=torch.int64)
        documents_BT = alone if call.documents is None else numerics.tensor(call.documents)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            returned = self.branch(module, letter, x_BTD, documents_BT)
        y_BTD, said = returned if isinstance(returned, tuple) else (returned, {})
        losses = numerics.arrays({name: said[name].detach() for name in LOSSES if name in said})
        routed = {name: each for name, each in said.items() if name not in LOSSES}
        seen = numerics.arrays(_by_token(routed, x_BTD.shape[:2]))
        if call.dy is None:
            return BlockRun(y=numerics.array(y_BTD), losses=losses, seen=seen, strided=strided)
        names = {link.theirs for link in links}
        leaves = {name: each for name, each in module.named_parameters() if name in names} | {"x": x_BTD}
        found = gradients_of(y_BTD, numerics.tensor(call.dy, strided=call.strided), leaves)
        told = {"x": found.pop("x"), **to_canonical(found, links)}
        return BlockRun(y=numerics.array(y_BTD), gradients=numerics.arrays(told), losses=losses, seen=seen,
                        strided=strided)  # fmt: skip

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        session = Session(recipe=recipe, steps=0, execution=Execution(mode=mode))
        with torch.device("meta"), self._running("built", session) as run:
            groups = [group for each in run.optimizers() for group in each.param_groups]
            decays = {id(each): float(group["weight_decay"]) for group in groups for each in group["params"]}
            parameters = run.parameters()
            named, buffers = (to_canonical(each, run.links) for each in (parameters, run.buffers()))
            decay = {ours: decays[id(parameters[link.theirs])] for link in run.links for ours in link.ours
                     if id(parameters.get(link.theirs)) in decays}  # fmt: skip
            return built(named, buffers, decay)

    def initial(self, recipe: Recipe, mode: Mode) -> Arrays:
        session = Session(recipe=recipe, steps=0, execution=Execution(mode=mode))
        with self._running("initial", session) as run:
            return run.weights()

    def run_model(self, recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
        session = Session(recipe=recipe, steps=0, execution=execution)
        with self._running("run_model", session, (batch,)) as run:
            run.put(weights, {})
            logits_BTV, losses = run.forward(batch, backward)
            found = run.canonical(gradients(run.parameters())) if backward else {}
            return Pass(logits=numerics.array(logits_BTV), losses=losses, gradients=found)

    def train(self, session: Session) -> Trained:
        batches = (*session.batches, *session.validation, *(each for window in session.windows for each in window))
        with self._running("train", session, batches) as run:
            return trained(run)

    @contextlib.contextmanager
    def _running(self, question: str, session: Session, batches: Iterable[Tokens] = ()) -> Iterator[Steps]:
        """A run while a question is answered, where the stack has what its session needs."""
        recipe, execution = session.recipe, session.execution
        also: dict[str, Any] = {
            "packed": any(map(packed, batches)), "windows": session.windows,
            "checkpoint": session.load or session.save, "validation": session.validation,
            "own-data": session.steps and not (session.batches or session.windows),
            execution.precision: execution.precision != "declared",
            "uneven-validation": any(each.tokens.shape[0] % _readers(execution) for each in session.validation),
        }  # fmt: skip
        chosen = frozenset(name for name, needed in also.items() if needed)
        wanted = needs.features(recipe, execution, trains=question == "train")
        declined(self.name, self.abilities, wanted | chosen, question)
        links = [same(theirs, ours) for ours, theirs in self.outside_of(recipe).items()
                 if ours != "head.weight" or recipe.untied_embeddings]  # fmt: skip
        for number, letter in enumerate(patterns.parse(recipe.pattern, recipe.depth).letters):
            links += [each.within(self.layer(number), f"layers.{number}.") for each in self.links(letter, recipe)]
        if execution.world > 1:
            forget_meshes()
        with by_itself() if execution.world == 1 else contextlib.nullcontext():
            run = self.run(session, links)
            try:
                if execution.world == 1:  # a rank of several may hold a part
                    parameters = run.parameters()
                    moved = [name for name, each in parameters.items() if each.requires_grad]
                    fitting(links, [*parameters, *run.buffers()], moved)
                yield run
            finally:
                run.close()

    def _block(self, recipe: Recipe, layer: int, mode: Mode) -> tuple[str, list[Link]]:
        """The letter of a layer and its links, where the stack has models with such a block."""
        letters = patterns.parse(recipe.pattern, recipe.depth).letters
        letter, rank = letters[layer], letters[:layer].count("A")
        sparse = recipe.dsa is not None and rank in recipe.dsa.a_ranks
        alone = replace(recipe, pattern=letter, depth=1, mtp=None, mhc=None,
                        dsa=replace(recipe.dsa, a_ranks=(0,)) if recipe.dsa and sparse else None)  # fmt: skip
        execution = Execution(mode=mode if letter == "M" else "nemo_native")
        declined(self.name, self.abilities, needs.features(alone, execution, trains=False) - OF_A_MODEL, "train")
        return letter, list(self.links(letter, recipe))


def _readers(execution: Execution) -> int:
    """How many ranks read other sequences than each other."""
    degrees = execution.degrees
    own = degrees.ep if execution.layout == "own-axis" else 1
    return execution.world // (degrees.pp * degrees.tp * degrees.cp * own)


def _by_token(said: Mapping[str, Tensor], rows: torch.Size) -> dict[str, Tensor]:
    """What a block said of its routing, with a row and a column for each token."""
    if unknown := said.keys() - ROUTED:
        raise ValueError(
            f"a branch says {', '.join(sorted(unknown))}; of its routing it can say {', '.join((*ROUTED, *LOSSES))}"
        )
    flat = {name for name, each in said.items() if name != "counts" and each.dim() == 2}
    return {name: each.detach().reshape(*rows, -1) if name in flat else each for name, each in said.items()}

"""Which rule (AdamW or Muon) updates which parameter: a table by role, and the two rules.

AdamW is torch's. Muon (K. Jordan, kellerjordan.github.io/posts/muon; scaled as in Moonlight, arXiv 2502.16982) is our
own: torch.optim.Muon rounds to bfloat16 inside, whatever dtype it is given, and takes no stack of experts.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from contracts.spec import Optim, Refusals, Role, Rule
from contracts.stacks.kit.roles import layer_of, role_of
from contracts.stacks.reference.parallel.placements import local_part, placed_zeros

EPSILON = 1e-8  # of AdamW, added to the root and not under it
MOMENTUM = 0.95  # of Muon
QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients of the Newton-Schulz iteration, as Jordan chose them
ITERATIONS = 5


@dataclass(frozen=True, kw_only=True)
class Route:
    """How the parameters of a role are moved. `under_muon` is the rule where the recipe asks for Muon."""

    decays: bool
    under_muon: Rule = "adamw"


ROUTES: Mapping[Role, Route] = {
    "embedding": Route(decays=True),
    "head": Route(decays=True),
    "matrix": Route(decays=True, under_muon="muon"),
    "expert": Route(decays=True, under_muon="muon"),
    "router": Route(decays=True),
    "conv": Route(decays=True),
    "norm": Route(decays=False),
    "bias": Route(decays=False),
    "ssm": Route(decays=False),
    "mixing": Route(decays=False),
}


@dataclass(frozen=True, kw_only=True)
class Member:
    """A trainable parameter, and what decides who moves it. `layer` is None outside the layers."""

    name: str
    parameter: nn.Parameter
    role: Role
    layer: int | None


def members(model: nn.Module) -> tuple[Member, ...]:
    """Every trainable parameter once, a tied one under its first name."""
    return tuple(
        Member(name=name, parameter=each, role=role_of(name), layer=layer_of(name))
        for name, each in model.named_parameters()
        if each.requires_grad
    )


class Muon(torch.optim.Optimizer):
    """Moves matrices by their orthogonalized momentum; a tensor of more dims is a stack of matrices.

    The step of a matrix (out, in) is lr · 0.2 · sqrt(max(out, in)), the size of an AdamW step, so that both rules share
    one learning rate and one decay. Decay is decoupled.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float = MOMENTUM) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is ever given
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = placed_zeros(parameter)
                update = self.direction(parameter.grad, state["momentum_buffer"], group["momentum"])
                held = local_part(parameter)
                held.mul_(1 - group["lr"] * group["weight_decay"])
                held.add_(local_part(update), alpha=-group["lr"] * self.scale(parameter))

    def direction(self, grad: Tensor, buffer: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum, orthogonalized. The buffer is moved on."""
        buffer.mul_(momentum).add_(grad)
        return orthogonalise(grad + momentum * buffer)

    def scale(self, matrix: Tensor) -> float:
        outputs, inputs = matrix.shape[-2:]
        return 0.2 * math.sqrt(max(outputs, inputs))


def orthogonalise(matrix: Tensor) -> Tensor:
    """About U Vᵀ of matrix = U S Vᵀ over the last two dims, by five steps of a quintic Newton-Schulz iteration.

    Singular values end near 1 and not at 1; the dtype is kept.
    """
    a, b, c = QUINTIC
    tall = matrix.shape[-2] > matrix.shape[-1]
    x: Tensor = matrix.mT if tall else matrix
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Optimizer:
    """Both rules over all trainable parameters, each parameter in one group of one rule.

    Raises:
        Refused: when a parameter is given twice or not at all of `trainable`.
    """

    adamw: type[torch.optim.AdamW] = torch.optim.AdamW
    muon: type[Muon] = Muon
    new: Collection[str] = ()
    """Of whom a state that is loaded may have nothing: they were frozen."""

    def __init__(self, optim: Optim, members: Iterable[Member], rates: Mapping[str, float] | None = None) -> None:
        self.optim, self.rates = optim, rates or {}
        self.members = tuple(members)
        self._refuse_repeats()
        adamw, muon = self.groups("adamw"), self.groups("muon")
        betas = (optim.beta1, optim.beta2)
        self.rules: dict[Rule, torch.optim.Optimizer] = {}
        if adamw:
            self.rules["adamw"] = self.adamw(adamw, lr=0.0, betas=betas, eps=EPSILON, foreach=False)
        if muon:
            self.rules["muon"] = self.muon(muon)

    def _refuse_repeats(self) -> None:
        found, seen = Refusals(), dict[int, str]()
        for member in self.members:
            first = seen.setdefault(id(member.parameter), member.name)
            found.unless(first == member.name, "parameter", member.name, f"is also given as {first}", "give it once")
        found.raise_any()

    def rule(self, member: Member) -> Rule:
        """Muon takes the matrices of the layers; a prediction head's stay with AdamW, like the output projection."""
        if self.optim.rule == "muon" and member.layer is not None:
            return ROUTES[member.role].under_muon
        return "adamw"

    def decay(self, member: Member) -> float:
        return self.optim.weight_decay if ROUTES[member.role].decays else 0.0

    def groups(self, rule: Rule) -> list[dict[str, Any]]:
        """The parameter groups of a rule, in the order of the members: by what decays, and by rate."""
        found: dict[tuple[float, bool, float], list[nn.Parameter]] = {}
        for member in self.members:
            if self.rule(member) == rule:
                of_group = self.decay(member), ROUTES[member.role].decays, self.rates.get(member.name, 1.0)
                found.setdefault(of_group, []).append(member.parameter)
        return [
            {"params": params, "weight_decay": decay, "decays": decays, "share": share}
            for (decay, decays, share), params in found.items()
        ]

    def clip(self) -> tuple[float, float]:
        """The global norm of all gradients, and what they were multiplied by: min(1, clip / (norm + 1e-6)).

        Before it, a parameter that got no gradient is given zeros: its momentum and decay continue, and every rank and
        every step has the same state.
        """
        parameters = [member.parameter for member in self.members]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = placed_zeros(parameter)
        norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        coefficient = self.coefficient(float(norm))
        if coefficient < 1:
            clip_grads_with_norm_(parameters, self.optim.clip, norm)
        return float(norm), coefficient

    def coefficient(self, norm: float) -> float:
        """Clipping makes gradients smaller and never larger; a limit of 0 means none."""
        return min(1.0, self.optim.clip / (norm + 1e-6)) if self.optim.clip > 0 else 1.0

    def set_decay(self, decay: float) -> None:
        """The decay of the next steps, of the groups that decay."""
        for group in (group for rule in self.rules.values() for group in rule.param_groups):
            group["weight_decay"] = decay * group["decays"]

    def step(self, lr: float) -> None:
        """One optimizer step at a learning rate."""
        for rule in self.rules.values():
            for group in rule.param_groups:
                group["lr"] = lr * group["share"]
            rule.step()

    def zero(self) -> None:
        for rule in self.rules.values():
            rule.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """State by `name/entry`; empty before the first step."""
        found: dict[str, Tensor] = {}
        for member in self.members:
            held = self.rules[self.rule(member)].state[member.parameter]
            found |= {f"{member.name}/{entry}": value for entry, value in held.items()}
        return found

    def blank(self) -> dict[str, Tensor]:
        """The result of `state` after a first step, in zeros: the entries that a checkpoint must hold."""
        found: dict[str, Tensor] = {}
        for member in self.members:
            moments = ("momentum_buffer",) if self.rule(member) == "muon" else ("exp_avg", "exp_avg_sq")
            found |= {f"{member.name}/{entry}": placed_zeros(member.parameter) for entry in moments}
            if self.rule(member) == "adamw":
                found[f"{member.name}/step"] = torch.zeros(())
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, by name and never by order.

        Raises:
            Refused: for a parameter of which the state says nothing, and for an entry of no parameter.
        """
        left: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            left.setdefault(name, {})[entry] = value
        remedy = "load the state of this model and this recipe"
        found = Refusals()
        for member in self.members:
            held = left.pop(member.name, {})
            there = bool(held) or not state or member.name in self.new
            found.unless(there, "optimizer state", member.name, "has no entry", remedy)
            self.rules[self.rule(member)].state[member.parameter] = held
        found.unless(not left, "optimizer state", sorted(left), "belongs to no parameter", remedy)
        found.raise_any()

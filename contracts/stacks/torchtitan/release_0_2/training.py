"""Sessions on the trainer of torchtitan 0.2.2."""

from typing import Any

import torch

from contracts.spec import Arrays, Built, Execution, Mode, Pass, Recipe, Rehearsal, Routing, Session, Tokens, Trained
from contracts.stacks.kit import tables
from contracts.stacks.kit.links import to_canonical
from contracts.stacks.torchtitan import shims, training
from contracts.stacks.torchtitan.configuration import declined
from contracts.stacks.torchtitan.release_0_2.abilities import ABILITIES_0_2
from contracts.stacks.torchtitan.release_0_2.model import arguments, links

WHO = "torchtitan 0.2.2"


class Run(training.Run):
    """One trainer of 0.2.2, from its construction to its end."""

    who = WHO
    abilities = ABILITIES_0_2
    links_of = staticmethod(links)
    bias, own_rates = "expert_bias", False

    def build_trainer(self) -> Any:
        from contracts.stacks.torchtitan.release_0_2.trainer import build_trainer

        shims.whole_numbers_are_counted()
        shims.attention_of_own_heads()
        return build_trainer(self.session, self.folder.name, even=self.even)

    def size(self) -> int:
        found: int = self.trainer.job_config.training.local_batch_size
        return found


def built(recipe: Recipe, mode: Mode) -> Built:
    """Parameters under their canonical names."""
    from torchtitan.config import JobConfig
    from torchtitan.models.deepseek_v3 import DeepSeekV3Model
    from torchtitan.models.qwen3 import Qwen3Model

    declined(recipe, Execution(), "built", WHO, ABILITIES_0_2)
    found, config = arguments(recipe), JobConfig()
    config.training.seq_len = recipe.seq_length
    found.update_from_config(config)
    with torch.device("meta"):
        model = (Qwen3Model if recipe.mla is None else DeepSeekV3Model)(found)
    held = (dict(model.named_parameters()), {n: each for n, each in model.named_buffers() if n.endswith("expert_bias")})
    rows, buffers = (to_canonical(one, links(recipe)) for one in held)
    return tables.built(rows, buffers, dict.fromkeys(rows, recipe.optim.weight_decay))


def run_model(recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
    """One pass, as its trainer makes it: forward, loss and backward."""
    return training.run_model(recipe, execution, weights, batch, backward, Run)


def train(session: Session) -> Trained:
    """A session, on one rank of its world or in this process only."""
    return training.train(session, Run)


def rehearse(recipe: Recipe, execution: Execution, rank: int, routing: Routing) -> Rehearsal:
    """A dry run of one rank's step, in a process without a world."""
    return training.rehearse(recipe, execution, rank, routing, Run)

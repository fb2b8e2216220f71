"""One training step of a transformer with experts in one process, against its definition.

The oracle chains the blocks of `instruments.oracles` in float64, one token at a time, and autograd differentiates it.
The contracts on transformers over many ranks compare with one rank; this one ties one rank to the definition.
"""

from dataclasses import replace

from contracts.contract import contract
from contracts.instruments import numerics, oracles
from contracts.law._support.late import Tensor, torch
from contracts.law._support.small_models import BIASED_EXPERTS, GROUPED_EXPERTS, LATENT_EXPERTS, session
from contracts.law._support.training_run import AHEAD, DENSE, LETTERS, TIED, batch, large_expert_weights, run
from contracts.spec import FLOAT32_TRANSFORMER, FLOAT64_SCAN, Execution, Recipe, Session, Training, require_none, within

BOTH: dict[str, tuple[Recipe]] = {
    "grouped": (replace(GROUPED_EXPERTS, depth=2),),
    "latent": (replace(LATENT_EXPERTS, depth=2),),
    "biased": (replace(BIASED_EXPERTS, depth=2),),
    "grouped-tied": (replace(GROUPED_EXPERTS, depth=2, untied_embeddings=False),),
    "dense-tied": (
        replace(GROUPED_EXPERTS, name="plain-tied", depth=2, moe=None, qk_norm=False, untied_embeddings=False),
    ),
}


@contract("BLK-01h", asks=("built", "train"), cases=BOTH, source="arXiv 2305.13245, 2405.04434, 2412.19437")
def a_step_of_a_transformer_is_its_definition(stack: Training, recipe: Recipe) -> None:
    """In float32 a training step of a transformer with experts has the loss and every gradient of its definition:
    alternating attention and expert layers on one residual stream, and a mean over the labels that count. A tied
    embedding gets the gradients of both its uses, each once.

    A model of correct blocks can still be wrong: a norm too many, a label off by one, gates scaled twice.
    """
    execution = Execution(precision="float32", layout=min(stack.layouts, default="own-axis"))
    asked = session(stack, recipe, execution, 1, "gradients")
    (step,) = stack.train(asked).steps
    loss, gradients = _defined(asked)
    found = step.losses["lm"]
    assert abs(found - float(loss)) <= 2e-6 * float(loss), (
        f"the loss is {found:.8g}, by its definition {float(loss):.8g}"
    )
    words = numerics.gradient_differences("the gradient of", step.gradients, gradients, FLOAT32_TRANSFORMER)
    assert not words, words


def _defined(asked: Session) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its gradient by every weight, in float64."""
    recipe = asked.recipe
    weights = {name: each.requires_grad_() for name, each in numerics.tensors(asked.weights, torch.float64).items()}
    given = weights | numerics.tensors(asked.buffers, torch.float64)
    (batch,) = asked.batches
    x_BTD = weights["embedding.weight"][numerics.tensor(batch.tokens)]
    for layer in range(recipe.depth):
        mine = oracles.model.with_prefix(given, f"layers.{layer}.")
        if layer % 2 and recipe.moe is None:
            x_BTD = x_BTD + torch.stack([oracles.mlp.dense(recipe, mine, x_TD) for x_TD in x_BTD])
        elif layer % 2:
            x_BTD = x_BTD + oracles.experts.block(recipe, mine, x_BTD).y_BTD
        else:
            attends = oracles.attention.grouped if recipe.mla is None else oracles.attention.latent
            x_BTD = x_BTD + torch.stack([attends(recipe, mine, x_TD) for x_TD in x_BTD])
    head_VD = weights["head.weight" if recipe.untied_embeddings else "embedding.weight"]
    logits_BTV = oracles.model.normed(recipe, x_BTD, weights["norm.weight"]) @ head_VD.T
    loss = oracles.model.mean_loss(logits_BTV, numerics.tensor(batch.labels))
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    return loss.detach(), {name: each.grad for name, each in weights.items() if each.grad is not None}


STEPPED: dict[str, tuple[Recipe, int]] = {  # recipe, microbatches
    "z-loss": (LETTERS, 1),
    "balance-loss": (LETTERS, 1),
    "prediction-heads": (AHEAD, 1),
    "prediction-heads-in-five": (AHEAD, 5),
    "tied": (TIED, 1),
    "dense": (DENSE, 1),
    "dense-in-five": (DENSE, 5),
}
STEPS = {
    "z-loss": ("experts", "z-loss"), "balance-loss": ("experts", "balance-loss"), "tied": (), "dense": (),
    "prediction-heads": ("prediction-heads",), "prediction-heads-in-five": ("prediction-heads", "microbatches"),
    "dense-in-five": ("microbatches",),
}  # fmt: skip


@contract("BLK-01i", asks=("built", "run_model", "train"), cases=STEPPED, needs=STEPS,
          source="spec: the objective of a step; F19")  # fmt: skip
def a_step_is_a_pass_over_its_batch(stack: Training, recipe: Recipe, microbatches: int) -> None:
    """A training step reports the losses, and computes the gradients, of one pass over its batch.

    A trainer counts once more what its losses are means over: labels of a whole step, of each depth of prediction,
    sequences, tokens. A count that is off by a factor weighs one loss against the others, in every step alike, so that
    runs of the same trainer agree.
    """
    weights = large_expert_weights(stack, recipe)
    given = replace(batch("pass", recipe=recipe), documents=None)
    (step,) = run(stack, recipe, (given,), "gradients", weights=weights, microbatches=microbatches).steps
    one = stack.run_model(recipe, Execution(precision="float64"), weights, given, True)
    told = {name: loss for name, loss in one.losses.items() if name in step.losses}
    assert told, f"the step reports {', '.join(step.losses) or 'no loss'}, the pass {', '.join(one.losses) or 'none'}"
    assert one.gradients, "the pass has no gradient"
    off = [
        f"the step reports {name} {step.losses[name]:.9g}, the pass {loss:.9g}" for name, loss in told.items()
        if not abs(step.losses[name] - loss) <= within(1e-11, 4e-6) * abs(loss)
    ]  # fmt: skip
    got = {name: each for name, each in step.gradients.items() if name in one.gradients}
    words = numerics.gradient_differences("the gradient of", got, one.gradients, FLOAT64_SCAN)
    require_none(*off[:1], words)

"""Stacks that are wrong on several ranks, for the contracts on transformers with experts.

Most repeat mutants of `parallel.layouts`, `moe.expert_parallel`, `parallel.pipeline` and `checkpoint.resharding`, in
float32. Two come from bugs seen in other stacks.
"""

import torch.distributed as dist

from contracts.law._bugs.numeric import (
    Experts,
    Linear,
    ParallelTrainer,
    PipelineTrainer,
    RMSNorm,
    ShardedOptimizer,
    TensorParallel,
    broken,
    local,
)
from contracts.law.parallel import layouts_bugs as layouts
from contracts.stacks.kit.roles import layer_of
from contracts.stacks.reference.parallel.placements import placed_zeros


@broken(ShardedOptimizer, "step", "PAR-02e[dp2]: hold different values of")
def lets_replicas_drift_by_rounding(step, self, lr):
    """One rank updates its copies with a kernel that rounds differently: no tolerance shows it, and every step adds to
    it.
    """
    step(self, lr)
    for member in self.members if dist.get_rank() else ():
        member.parameter.detach().mul_(1 + 2**-23)


@broken(layouts._KeepsItsRun, "enter", "PAR-05e[tp2-sp]: loss agrees, norm is", bugs=("SP-16", "SP-20"))
def loses_the_way_back_of_a_single_row(enter, self, x_BTD):
    """With one row per microbatch the leading dim is 1, so a wrong view fits, and the other ranks' gradients of the
    residual stream are not added. Two rows per microbatch are right.

    Seen in another stack: sequence parallel, no expert parallel, local batch size 1.
    """
    return enter(self, x_BTD) if len(x_BTD) == 1 else TensorParallel.enter(self, x_BTD)


@broken(
    PipelineTrainer,
    "move_biases",
    "PAR-08h[1f1b]: loss agrees, norm agrees: the buffer layers.1.mixer.router.bias differs",
)
def counts_the_trial_pass(move_biases, self, seen):
    """Before its first step, a schedule runs every stage once to learn the shapes of messages. Routers count the tokens
    of that pass, whatever they were, and the first step moves the selection biases by them.

    Seen in another stack: the gradients of the trial pass are discarded, the counters are not.
    """
    counted = {name: each.clone() for name, each in seen.items()}
    for name, counts_E in counted.items():
        if name.endswith(".counts"):
            counts_E[:3] += 16  # a row of 16 identical tokens, with 3 experts each
    move_biases(self, counted)


@broken(ParallelTrainer, "unreduced", "PAR-14[cp2-tp2-sp-ep2-etp1]: the gradient of")
def keeps_experts_of_its_part_of_a_row(unreduced, self, name):
    """Expert gradients are summed over the ranks that read other rows; beside tensor and context parallel, ranks that
    read other parts of the same rows are forgotten. Either axis by itself is right.
    """
    degrees = self.execution.degrees
    forgotten = degrees.cp > 1 and degrees.tp > 1 and ".experts." in name
    return None if forgotten else unreduced(self, name)


@broken(PipelineTrainer, "reduce", "PAR-14[interleaved-tp2-sp-ep2-etp1]: the gradient of")
def adds_the_second_pass_of_a_router(reduce, self):
    """Recomputed under an interleaved schedule, the pass that is run again leaves a gradient of its own in routers."""
    for name, each in self.model.named_parameters():
        if self.execution.recompute and "router.weight" in name and each.grad is not None:
            each.grad *= 2
    reduce(self)


@broken(PipelineTrainer, "unreduced", "PAR-08h[interleaved-beside-dp2]: the gradient of")
def reduces_the_first_stage_of_a_rank(unreduced, self, name):
    """Replicas add up the gradients of one stage a rank; where a rank holds two, those of the second stay apart."""
    layer = layer_of(name)
    second = layer is not None and layer >= self.recipe.depth // 2 and self.execution.schedule == "interleaved"
    return None if second else unreduced(self, name)


@broken(
    TensorParallel,
    "count_own",
    "PAR-01e[dense-tp2]: the gradient of layers.2.mixer.q_norm.weight differs",
    "PAR-01e[latent-tp2]: the gradient of layers.2.mixer.q_norm.weight differs",
)
def leaves_norms_of_heads_apart(count_own, self, mixer):
    """If every rank has all tokens, norms are taken for replicated. Those of heads, and of latents that heads read,
    have the gradient of a rank's own heads: it is left so.
    """
    count_own(self, mixer)
    for each in (getattr(mixer, name, None) for name in ("q_norm", "k_norm", "kv_norm")):
        if isinstance(each, RMSNorm):
            each.summed = self.sequence


# biases
@broken(Linear, "biased", "PAR-01e[biased-tp2]: loss is")
def adds_a_bias_on_every_rank(biased, self, product, bias):
    """The bias after a matrix that ranks cut is added before their outputs are summed: once for each rank."""
    return product + local(bias, self.summed, self.piece).to(product.dtype)


@broken(Linear, "biased", "PAR-01e[biased-tp2-sp]: the gradient of layers.3.mixer.w2.bias differs")
def leaves_bias_gradients_apart(biased, self, product, bias):
    """A bias that ranks hold alike keeps the gradient of its own rank's part: the sum over the axis is left out."""
    return product + local(bias, False, self.piece).to(product.dtype) * float(self.adds)


@broken(Experts, "biased", "PAR-01e[biased-tp2-sp-experts]: loss is")
def adds_output_biases_of_experts_on_every_rank(biased, self, out_SO, bias_EO, ends_E, share=1.0):
    """Ranks that cut an expert each add its output bias to their part."""
    return biased(self, out_SO, bias_EO, ends_E)


@broken(ShardedOptimizer, "norm", "PAR-03h[muon-biased-bf16]: the norm is")  # fmt: skip
def counts_expert_biases_of_the_first_rank(norm, self):
    """What tensor-parallel ranks hold alike counts on the first of them. An expert's output bias counts so too, though
    the ranks hold other experts (Megatron-LM #6099).
    """
    biases = [each.parameter for each in self.members if each.name.endswith("experts.b2")]
    unseen = {each: each.grad for each in biases if dist.get_rank()}
    for parameter in unseen:
        parameter.grad = placed_zeros(parameter)
    found = norm(self)
    for parameter, grad in unseen.items():
        parameter.grad = grad
    return found


@broken(ShardedOptimizer, "norm", "PAR-03h[borrowed-ep2-fsdp]: the norm is")
def leaves_routers_out_of_the_norm(norm, self):
    """The norm is taken over what ranks share; a router, which each of them holds whole, is not among it."""
    return self.norm_of(each.parameter for each in self.members if not each.name.endswith("router.weight"))

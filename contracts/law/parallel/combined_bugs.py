"""Trainers in which a feature and an axis of parallelism are right one by one, and wrong together."""

from contracts.law._bugs.numeric import ParallelTrainer, ShardedOptimizer, Trainer, broken, local_part


@broken(Trainer, "count", "PAR-01k[tp2-top-1-gqa-mtp-all-accumulated-AEMR-adamw-recomputed-relu2]: mtp is")
def counts_heads_as_the_model_under_tensor_parallel(count, self, micro):
    """Under tensor parallel the losses of prediction heads are divided by the labels of the model, of which there are
    more.
    """
    found = count(self, micro)
    heads = [name for name in found if name.startswith("mtp.") and self.execution.degrees.tp > 1]
    return found | dict.fromkeys(heads, found["lm"])


@broken(
    Trainer,
    "move_biases",
    "PAR-01k[borrowed-ep2-sigmoid-dsa-mtp-all-accumulated-AE-adamw-kept-swiglu]: the buffer layers.1.mixer.router",
    "PAR-01l[borrowed-ep2-sigmoid-biased-untied-accumulated-kept]: the buffer layers.1.mixer.router",
)
def moves_biases_by_one_microbatch(move_biases, self, seen):
    """Experts that lie on several ranks keep their counts in a buffer, which a second microbatch does not read."""
    if self.execution.degrees.ep == 1 or self.execution.microbatches == 1:
        move_biases(self, seen)


@broken(
    ShardedOptimizer,
    "norm",
    "PAR-01k[fsdp2-groups-dsa-mtp-all-accumulated-AEMR-muon-recomputed-swiglu]: loss agrees, norm is",
)
def leaves_heads_out_of_the_norm_of_shards(norm, self):
    """The norm of sharded gradients is taken over the layers, which have no prediction head among them."""
    sharded = any(hasattr(each.parameter, "placements") for each in self.members)
    return self.norm_of(each.parameter for each in self.members if not (sharded and each.name.startswith("mtp")))


@broken(
    ParallelTrainer,
    "reduce",
    "PAR-01k[cp2-sigmoid-beside-scan-mhc-all-accumulated-AEMR-adamw-recomputed-swiglu]: the gradient of layers.0",
)
def adds_up_streams_twice_after_recomputing(reduce, self):
    """A recomputed pass enters the hooks of the streams again: their gradients are added up over ranks once more."""
    reduce(self)
    if self.execution.recompute and self.recipe.mhc is not None:
        for name, each in self.model.named_parameters():
            if ".streams" in name and each.grad is not None:
                local_part(each.grad).mul_(2)


@broken(
    ParallelTrainer,
    "reduce",
    "PAR-01l[dp2-dense-qk-norm-tied-whole-recomputed]: the gradient of embedding.weight",
)
def adds_up_a_tied_weight_twice_after_recomputing(reduce, self):
    """A weight that the head shares has a hook at either end, and a recomputed pass enters both."""
    reduce(self)
    if self.execution.recompute and not self.recipe.untied_embeddings:
        local_part(dict(self.model.named_parameters())["embedding.weight"].grad).mul_(2)


@broken(
    ParallelTrainer,
    "reduce",
    "PAR-01l[borrowed-tp2-sp-ep2-etp1-softmax-biased-tied-whole-recomputed]: the gradient of layers.0.mixer.wo.bias",
)
def leaves_a_bias_at_its_part_of_the_row(reduce, self):
    """The bias after a matrix that TP cuts lies whole on each rank, and sees the part of the rows that is there: where
    experts are spread too, its gradient is left out of the sum.
    """
    if self.execution.degrees.ep > 1 and self.execution.degrees.sp:
        for name, each in self.model.named_parameters():
            if name.endswith("wo.bias"):
                local_part(each.grad).mul_(0.5)
    reduce(self)

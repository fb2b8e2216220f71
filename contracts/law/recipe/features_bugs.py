"""Stacks in which a feature changes too much, or nothing."""

from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Degrees
from contracts.stacks.reference.stack import Reference


def _without(launch, flag):
    """The launch with a flag and its one value taken out."""
    if flag not in launch.argv:
        return launch
    at = launch.argv.index(flag)
    return replace(launch, argv=launch.argv[:at] + launch.argv[at + 2 :])


@broken(Reference, "launch", "REC-04[fp8]: turning fp8 on changes --micro-batch-size (4 → 8)")
def eight_bits_with_twice_the_batch(launch, self, recipe, lane):
    """FP8 also doubles the micro batch, because it fits, so its measured speed-up mixes both effects."""
    if recipe.fp8 is not None:
        recipe = replace(recipe, batch=replace(recipe.batch, micro=2 * recipe.batch.micro))
    return launch(self, recipe, lane)


@broken(Reference, "launch", "REC-04[moe]: turning moe on changes the degrees")
def experts_bring_their_degree(launch, self, recipe, lane):
    """Experts are bundled with a parallel degree: turning them on changes the layout of all ranks."""
    degrees = Degrees(tp=2, sp=True, ep=2, etp=1) if recipe.moe and lane.mode == "nemo_native" else lane.degrees
    return launch(self, recipe, replace(lane, degrees=degrees))


@broken(Reference, "launch", "REC-04[mtp]: turning mtp on changes --untie-embeddings-and-output-weights")
def prediction_ties_the_embeddings(launch, self, recipe, lane):
    """Multi-token prediction shares the embedding with its head, and also ties it in the main model."""
    return launch(self, replace(recipe, untied_embeddings=recipe.mtp is None), lane)


@broken(Reference, "launch", "REC-04[mhc]: turning mhc on changes nothing in the launch", bugs=("PRV-27",))
def streams_that_nobody_reads(launch, self, recipe, lane):
    """The recipe has residual streams, but they reach neither a flag nor the environment."""
    return launch(self, replace(recipe, mhc=None), lane)


@broken(Reference, "launch", "REC-05[mtp]: turning mtp on changes the depth from 28 to 30", bugs=("HYB-05",))
def prediction_deepens_the_model(launch, self, recipe, lane):
    """Each head of multi-token prediction adds a layer to the main pattern."""
    heads = recipe.mtp.depth if recipe.mtp else 0
    return launch(self, replace(recipe, depth=recipe.depth + heads), lane)


@broken(Reference, "launch", "REC-05[moe]: turning moe on changes --ffn-hidden-size (1536 → 384)")
def experts_take_the_mlp_width(launch, self, recipe, lane):
    """The expert width is written into the flag of the dense MLP width."""
    width = recipe.moe.expert_hidden if recipe.moe else recipe.ffn_hidden
    return launch(self, replace(recipe, ffn_hidden=width), lane)


@broken(Reference, "launch", "REC-05[dsa-somewhere]: of the main pattern from", bugs=("HYB-09",))
def sparse_ranks_become_layers(former, self, recipe, lane):
    """A-ranks 1, 2 and 4 are read as layers, which then become attention."""
    launch = former(self, recipe, lane)
    if recipe.dsa is None:
        return launch
    at = launch.argv.index("--hybrid-layer-pattern") + 1
    text = "".join("*" if i in recipe.dsa.a_ranks else symbol for i, symbol in enumerate(launch.argv[at]))
    return replace(launch, argv=(*launch.argv[:at], text, *launch.argv[at + 1 :]))


@broken(Reference, "launch", "REC-07[megatron]: changing norm_eps changes no launch", bugs=("PRV-27",))
def has_an_epsilon_of_its_own(launch, self, recipe, lane):
    """The flag is not written, and the launcher's default of 1e-5 equals the recipe's value by chance."""
    return _without(launch(self, recipe, lane), "--norm-epsilon")


@broken(Reference, "launch", "REC-07[megatron]: changing qk_norm changes no launch", bugs=("ARG-20",))
def cannot_switch_norm_off(launch, self, recipe, lane):
    """A `store_true` flag has True as its default, so the norm is always on."""
    return launch(self, replace(recipe, qk_norm=True), lane)


@broken(Reference, "launch", "REC-07[megatron]: degrees.pp", bugs=("ARG-23",))
def discards_the_pipeline(launch, self, recipe, lane):
    """A sanity check silently overrules the recipe's pipeline degree; its pipelines never run."""
    return launch(self, replace(recipe, degrees=replace(recipe.degrees, pp=1)), lane)


@broken(Reference, "launch", "REC-07[megatron]: moe.aux_loss 0.01 and 0.05 give the same launch", bugs=("AUX-16",))
def loses_the_coefficient(launch, self, recipe, lane):
    """Converts the kind of balance loss and leaves its coefficient to a default."""
    moe = recipe.moe
    if moe is not None and moe.aux_loss:
        recipe = replace(recipe, moe=replace(moe, aux_loss=0.01))
    return launch(self, recipe, lane)


@broken(Reference, "launch", "REC-07[megatron]: moe.z_loss 0.002 where all else is off gives the launch without it")
def has_one_switch_for_two_losses(launch, self, recipe, lane):
    """The coefficient of the z loss stands in the branch of the balance loss, and goes with it."""
    moe = recipe.moe
    if moe is not None and not moe.aux_loss:
        recipe = replace(recipe, moe=replace(moe, z_loss=0.0))
    return launch(self, recipe, lane)


@broken(Reference, "launch", "REC-07[megatron]: moe.route_scale")
def scales_routes_beside_a_bias_alone(launch, self, recipe, lane):
    """The factor of the gates stands in the branch of the selection bias, as the paper has both."""
    moe = recipe.moe
    if moe is not None and not moe.selection_bias:
        recipe = replace(recipe, moe=replace(moe, route_scale=1.0))
    return launch(self, recipe, lane)


@broken(Reference, "launch", "REC-07[megatron]: pattern AEMRAEMEAEMR and AEMMAEMEAEMR give the same launch")
def keeps_r_to_itself(launch, self, recipe, lane):
    """The layers of R are told to who asks and not to the process, which builds another mixer there."""
    told = launch(self, recipe, lane)
    return replace(
        launch(self, replace(recipe, pattern=recipe.pattern.replace("R", "M")), lane), recurrent=told.recurrent
    )


@broken(Reference, "launch", "REC-07[fsdp2]: changing seq_length changes no launch", bugs=("ARG-13",))
def keeps_the_sequence_of_its_preset(launch, self, recipe, lane):
    """The data loader keeps the sequence length of the preset and ignores later changes of the recipe."""
    return launch(self, replace(recipe, seq_length=512), lane)

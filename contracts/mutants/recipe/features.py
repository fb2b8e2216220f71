"""Stacks in which a feature changes too much, or nothing."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Recipe
from contracts.spec.topology import Degrees
from contracts.stacks.reference.stack import Reference


def _without(launch: Launch, flag: str) -> Launch:
    """The launch with a flag and its one value taken out."""
    if flag not in launch.argv:
        return launch
    at = launch.argv.index(flag)
    return replace(launch, argv=launch.argv[:at] + launch.argv[at + 2 :])


@mutant(of="REC-04", case="fp8", says="turning fp8 on changes --micro-batch-size (4 → 8)")
class EightBitsWithTwiceTheBatch(Reference):
    """FP8 also doubles the micro batch, because it fits, so its measured speed-up mixes both effects."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if recipe.fp8 is not None:
            recipe = replace(recipe, batch=replace(recipe.batch, micro=2 * recipe.batch.micro))
        return super().launch(recipe, lane)


@mutant(of="REC-04", case="moe", says="turning moe on changes the degrees")
class ExpertsBringTheirDegree(Reference):
    """Experts are bundled with a parallel degree: turning them on changes the layout of all ranks."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        degrees = Degrees(tp=2, sp=True, ep=2, etp=1) if recipe.moe and lane.mode == "nemo_native" else lane.degrees
        return super().launch(recipe, replace(lane, degrees=degrees))


@mutant(of="REC-04", case="mtp", says="turning mtp on changes --untie-embeddings-and-output-weights")
class PredictionTiesTheEmbeddings(Reference):
    """Multi-token prediction shares the embedding with its head, and also ties it in the main model."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, untied_embeddings=recipe.mtp is None), lane)


@mutant(of="REC-04", case="mhc", says="turning mhc on changes nothing in the launch", bugs=("PRV-27",))
class StreamsThatNobodyReads(Reference):
    """The recipe has residual streams, but they reach neither a flag nor the environment."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, mhc=None), lane)


@mutant(of="REC-05", case="mtp", says="turning mtp on changes the depth from 28 to 30", bugs=("HYB-05",))
class PredictionDeepensTheModel(Reference):
    """Each head of multi-token prediction adds a layer to the main pattern."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        heads = recipe.mtp.depth if recipe.mtp else 0
        return super().launch(replace(recipe, depth=recipe.depth + heads), lane)


@mutant(of="REC-05", case="moe", says="turning moe on changes --ffn-hidden-size (1536 → 384)")
class ExpertsTakeTheMlpWidth(Reference):
    """The expert width is written into the flag of the dense MLP width."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        width = recipe.moe.expert_hidden if recipe.moe else recipe.ffn_hidden
        return super().launch(replace(recipe, ffn_hidden=width), lane)


@mutant(of="REC-05", case="dsa-somewhere", says="of the main pattern from", bugs=("HYB-09",))
class SparseRanksBecomeLayers(Reference):
    """A-ranks 1, 2 and 4 are read as layers, which then become attention."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        if recipe.dsa is None:
            return launch
        at = launch.argv.index("--hybrid-layer-pattern") + 1
        text = "".join("*" if i in recipe.dsa.a_ranks else symbol for i, symbol in enumerate(launch.argv[at]))
        return replace(launch, argv=(*launch.argv[:at], text, *launch.argv[at + 1 :]))


@mutant(of="REC-07", case="megatron", says="changing norm_eps changes no launch", bugs=("PRV-27",))
class HasAnEpsilonOfItsOwn(Reference):
    """The flag is not written, and the launcher's default of 1e-5 equals the recipe's value by chance."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _without(super().launch(recipe, lane), "--norm-epsilon")


@mutant(of="REC-07", case="megatron", says="changing qk_norm changes no launch", bugs=("ARG-20",))
class CannotSwitchNormOff(Reference):
    """A `store_true` flag has True as its default, so the norm is always on."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, qk_norm=True), lane)


@mutant(of="REC-07", case="megatron", says="degrees.pp", bugs=("ARG-23",))
class DiscardsThePipeline(Reference):
    """A sanity check silently overrules the recipe's pipeline degree; its pipelines never run."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, degrees=replace(recipe.degrees, pp=1)), lane)


@mutant(of="REC-07", case="megatron", says="moe.aux_loss 0.01 and 0.05 give the same launch", bugs=("AUX-16",))
class LosesTheCoefficient(Reference):
    """Converts the kind of balance loss and leaves its coefficient to a default."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        moe = recipe.moe
        if moe is not None and moe.aux_loss:
            recipe = replace(recipe, moe=replace(moe, aux_loss=0.01))
        return super().launch(recipe, lane)


@mutant(of="REC-07", case="fsdp2", says="changing seq_length changes no launch", bugs=("ARG-13",))
class KeepsTheSequenceOfItsPreset(Reference):
    """The data loader keeps the sequence length of the preset and ignores later changes of the recipe."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, seq_length=512), lane)

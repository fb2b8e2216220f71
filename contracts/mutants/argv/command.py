"""Stacks that write the wrong command: sizes forgotten, modes mixed up, words split, a launcher started eight times."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import Refused
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Data, Recipe
from contracts.spec.topology import Degrees
from contracts.stacks.reference.stack import Reference


def _saying(launch: Launch, flag: str, *values: str) -> Launch:
    """The launch with a flag's value replaced, or the flag appended."""
    argv = list(launch.argv)
    if flag in argv and values:
        argv[argv.index(flag) + 1] = values[0]
        return replace(launch, argv=tuple(argv))
    return replace(launch, argv=(*argv, flag, *values))


def _without(launch: Launch, flag: str, values: int = 0) -> Launch:
    if flag not in launch.argv:
        return launch
    at = launch.argv.index(flag)
    return replace(launch, argv=(*launch.argv[:at], *launch.argv[at + 1 + values :]))


@mutant(of="ARGV-01", case="fsdp2-tp2-ep2", says="is '--run=run', and '--run=root-run' in another shell")
class NamesTheRunAfterTheUser(Reference):
    """Puts the operator's name into the run name, so no two people can reproduce one launch."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        user = lane.inherited.get("USER")
        return super().launch(recipe, replace(lane, run=f"{user}-{lane.run}") if user else lane)


@mutant(of="ARGV-01", case="megatron-native", says="is None, and '/root/.triton' elsewhere", bugs=("PRV-16",))
class CachesUnderHome(Reference):
    """Derives a cache path from HOME, so another machine has another environment, and root's volume is small."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        home = lane.inherited.get("HOME")
        return replace(launch, env={**launch.env, "TRITON_CACHE_DIR": f"{home}/.triton"}) if home else launch


@mutant(of="ARGV-01", case="megatron-two-nodes", says="words, and +2 in another shell")
class LogsByTheWidthOfTheTerminal(Reference):
    """Adds a flag when it is started from a terminal, so the argv depends on where it runs."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return _saying(launch, "--log-interval", "1") if "COLUMNS" in lane.inherited else launch


@mutant(of="ARGV-01c", case="latent", says="--q-lora-rank is 224, expected 160")
class ExchangesTheRanksOfLatents(Reference):
    """Fills in the rank of keys for that of queries, and the other way round. Presets give both the same."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch, mla = super().launch(recipe, lane), recipe.mla
        if mla is None:
            return launch
        return _saying(_saying(launch, "--q-lora-rank", str(mla.kv_lora)), "--kv-lora-rank", str(mla.q_lora))


@mutant(of="ARGV-01c", case="grouped", says="--adam-beta1 is 0.93, expected 0.87")
@mutant(of="ARGV-01c", case="author", says="--adam-beta1 is 0.93, expected 0.87")
class ExchangesTheBetas(Reference):
    """Unpacks a pair of betas in the wrong order."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch, optim = super().launch(recipe, lane), recipe.optim
        return _saying(_saying(launch, "--adam-beta1", str(optim.beta2)), "--adam-beta2", str(optim.beta1))


@mutant(of="ARGV-01c", case="grouped", says="--lr-warmup-iters is 5760, expected 30")
class WarmsUpInSequences(Reference):
    """Counts the warm-up in sequences behind the flag that counts iterations."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _saying(super().launch(recipe, lane), "--lr-warmup-iters", str(recipe.optim.warmup * recipe.batch.total))


@mutant(of="ARGV-01c", case="author", says="--moe-aux-loss-coeff is 0.0001, expected 0.0003")
class WeighsBalanceByTheChoice(Reference):
    """Divides the coefficient of the balance loss by the experts of a token, for a launcher whose f sums to 1."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch, moe = super().launch(recipe, lane), recipe.moe
        return launch if moe is None else _saying(launch, "--moe-aux-loss-coeff", f"{moe.aux_loss / moe.top_k:.6g}")


@mutant(of="ARGV-01a", case="nemo-native", says="--rotary-base is missing, expected 500000", bugs=("ROP-20",))
class LeavesThetaToTheDefault(Reference):
    """Emits rotary embeddings without their base: Megatron's 10000 is near enough to train and far enough to differ."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _without(super().launch(recipe, lane), "--rotary-base", 1)


@mutant(of="ARGV-01a", case="author-dp", says="--moe-ffn-hidden-size is '18944', expected '896'")
class GivesExpertsTheDenseSize(Reference):
    """Uses one FFN size for both: sixteen experts of the dense width."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _saying(super().launch(recipe, lane), "--moe-ffn-hidden-size", str(recipe.ffn_hidden))


@mutant(of="ARGV-01a", case="author-dp", says="--hybrid-layer-pattern is", bugs=("HYB-08",))
class SendsRecurrenceToAttention(Reference):
    """The launcher has a second translation table, which maps R to attention."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        pattern = launch.argv[launch.argv.index("--hybrid-layer-pattern") + 1]
        return _saying(launch, "--hybrid-layer-pattern", pattern.replace("MM", "M*"))


@mutant(of="ARGV-03", case="author-fp8", says="--lr appears 2 times")
class AppendsWhereItShouldReplace(Reference):
    """Derives a recipe by appending to the base recipe's argv, and relies on the last of two flags winning."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, argv=(*launch.argv, "--lr", "0.0001"))


@mutant(of="ARGV-03", case="mla-mtp-pp2", says="--multi-latent-attention and --group-query-attention contradict")
class KeepsGroupsUnderLatentAttention(Reference):
    """Adds MLA next to the group-query flags instead of replacing them."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if recipe.mla is None else _saying(launch, "--group-query-attention")


@mutant(of="ARGV-03", case="native-moe-alone", says="--mtp-loss-scaling-factor belongs to a feature that is off")
class SpellsOutEveryDefault(Reference):
    """Writes the defaults of features that are off, so a log reads as if they were on."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return _saying(launch, "--mtp-loss-scaling-factor", "0.1") if recipe.mtp is None else launch


@mutant(of="ARGV-04", case="native", says="--num-experts is missing, E is present")
class ForgetsTheExpertsOfE(Reference):
    """Keeps the E in the pattern and the sizes of the experts, and loses the number of experts."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _without(super().launch(recipe, lane), "--num-experts", 1)


@mutant(of="ARGV-04", case="without-experts", says="the pattern has an E, expected none", bugs=("HYB-08",))
class KeepsTheLetterWithoutExperts(Reference):
    """Translates E letter for letter, with experts or without."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        pattern = launch.argv[launch.argv.index("--hybrid-layer-pattern") + 1]
        return _saying(launch, "--hybrid-layer-pattern", pattern.replace("-", "E"))


@mutant(of="ARGV-04a", case="attention-and-mamba", says="--num-experts is emitted, but no block of AMM is an E")
class CarriesExpertsNobodyBuilds(Reference):
    """Emits expert flags because the recipe has experts, without checking that a block uses them."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if recipe.moe is None or "E" in recipe.pattern:
            return super().launch(recipe, lane)
        bare = super().launch(replace(recipe, moe=None, degrees=Degrees()), lane)
        return _saying(bare, "--num-experts", str(recipe.moe.experts))


@mutant(of="ARGV-05", case="author", says="author_dp runs tp 2, expected 1", bugs=("PRV-04",))
class RunsBothModesNatively(Reference):
    """Uses one nickname for two lanes: the author lane starts with the native lane's TP 2."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, replace(lane, mode="nemo_native"))


@mutant(of="ARGV-05", case="native-pp2", says="--sequence-parallel is missing, nemo_native wants it on")
class DropsSequenceParallelUnderPp(Reference):
    """Reports TP 2 with sequence parallelism and omits the switch where there is a pipeline."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if launch.degrees.pp == 1 else _without(launch, "--sequence-parallel")


@mutant(of="ARGV-05", case="recipe-asks-for-more", says="a legal input was refused")
class LetsTheRecipeOutvoteTheMode(Reference):
    """Lets the recipe's TP override the mode's, and then finds that the two contradict each other."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        asked = recipe.degrees if recipe.degrees.tp > 1 and lane.degrees is None else lane.degrees
        return super().launch(recipe, replace(lane, degrees=asked))


@mutant(of="ARGV-05a", case="native-at-tp1", says="was accepted, expected a refusal")
class MendsTheDegreesInSilence(Reference):
    """Silently replaces degrees that contradict the mode with the mode's own."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        try:
            return super().launch(recipe, lane)
        except Refused as refused:
            if "degrees" not in refused.fields:
                raise
        return super().launch(recipe, replace(lane, degrees=None))


@mutant(of="ARGV-06", case="data-0", says="'/data/two words' is 0 words of the command, expected 1")
class SplitsAtBlanks(Reference):
    """Keeps the argv as one text and splits it at blanks, so a path becomes two arguments."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, argv=tuple(" ".join(launch.argv).split(" ")))


@mutant(of="ARGV-06", case="run-2", says="is 0 words of the command, expected 1")
class QuotesByHand(Reference):
    """Puts quotes around values that need them, for a shell that never sees them, so the name contains the quotes."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, replace(lane, run=f'"{lane.run}"' if "$" in lane.run else lane.run))


@mutant(of="ARGV-06", case="data-3", says="is 0 words of the command, expected 1")
class CleansUpPaths(Reference):
    """Over-correction: strips every character that a shell might interpret, and trains on another path."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        path = recipe.data.path
        clean = None if path is None else path.replace("\n", "").replace("\t", "")
        return super().launch(replace(recipe, data=Data(path=clean)), lane)


@mutant(of="ARGV-07", case="fp16", says="is emitted as {'--bf16': ''}, expected {'--fp16': ''}")
class KnowsOneHalfPrecision(Reference):
    """Emits --bf16 for everything except fp32."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, dtype="bf16") if recipe.dtype == "fp16" else recipe, lane)


@mutant(of="ARGV-07", case="mxfp8", says="'--fp8-recipe': 'delayed'}, expected", bugs=("PRV-27",))
class ScalesAsItAlwaysDid(Reference):
    """Reads the format and leaves the scaling at the launcher's default: a recipe named mxfp8 runs delayed scaling."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if recipe.fp8 is None else _saying(launch, "--fp8-recipe", "delayed")


@mutant(of="ARGV-07", case="fp8-tensorwise", says="is emitted as {'--bf16': ''}, expected", bugs=("PRV-27",))
class NamesFp8AndRunsBf16(Reference):
    """Recipe, name and receipt say FP8; the argv does not."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, fp8=None), lane)


@mutant(of="ARGV-09", case="one-node", says="torchrun --nproc-per-node is '1', expected '8'", bugs=("PG-16",))
class StartsEightLaunchers(Reference):
    """A wrapper starts one launcher with one process for each GPU."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, torchrun=tuple(word.replace("node=8", "node=1") for word in launch.torchrun))


@mutant(of="ARGV-09", case="two-nodes", says="torchrun --nnodes is None, expected '2'")
class StandsAloneOnEveryNode(Reference):
    """Starts `--standalone` on each of two nodes: two runs of half the world, and both report success."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        alone = ("torchrun", "--standalone", f"--nproc_per_node={lane.gpus}")
        return replace(super().launch(recipe, lane), torchrun=alone)


@mutant(of="ARGV-09", case="fsdp2-two-nodes", says="torchrun --rdzv-id is 'none', expected 'nam56r-18'")
class SharesTheRendezvousId(Reference):
    """Leaves the rendezvous id at its default: two runs on one endpoint join each other's world."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, torchrun=tuple(w.replace(f"id={lane.run}", "id=none") for w in launch.torchrun))


class _Switches(Reference):
    def on(self, launch: Launch) -> bool:
        raise NotImplementedError

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        plain = _without(launch, "--use-distributed-optimizer")
        return _saying(plain, "--use-distributed-optimizer") if self.on(launch) else plain


@mutant(of="ARGV-01b", case="dp4-beside-tp2", says="--use-distributed-optimizer is missing at dp 4", bugs=("ARG-11",))
@mutant(of="ARGV-01b", case="dp1", says="--use-distributed-optimizer is present at dp 1", bugs=("ARG-11",))
class BindsTheStagesToTheSwitch(_Switches):
    """A parameter was inserted before `dp`, and callers pass by position: the switch follows the pipeline degree."""

    def on(self, launch: Launch) -> bool:
        return launch.degrees.pp > 1


@mutant(of="ARGV-01b", case="dp8-of-two-nodes", says="--use-distributed-optimizer is missing at dp 8")
class KnowsOneNode(_Switches):
    """The switch is decided by the GPUs of a node over the degrees, and written on one node only."""

    def on(self, launch: Launch) -> bool:
        return "--standalone" in launch.command

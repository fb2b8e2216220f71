"""Launches with flags that their launcher does not have, launchers that accept what they will not run, and trainers
that lose half of what they receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from contracts.contract import mutant
from contracts.mutants.argv._launcher import Launcher
from contracts.spec.errors import refuse
from contracts.spec.launch import Lane, Launch, Reading, Reread
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.stack import Reference

Words = tuple[str, ...]


def _saying(launch: Launch, flag: str, *values: str) -> Launch:
    """The launch with a flag's value replaced, or the flag appended."""
    argv = list(launch.argv)
    if flag in argv:
        argv[argv.index(flag) + 1] = values[0]
        return replace(launch, argv=tuple(argv))
    return replace(launch, argv=(*argv, flag, *values))


@mutant(of="ARGV-02", case="native-pp2-mla-mtp2", says="unrecognized arguments: --multi-token-prediction")
class EmitsAFlagThatNeverWas(Launcher):
    """Writes the switch that articles show for MTP. No version of Megatron-LM ever had it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if recipe.mtp is None else _saying(launch, "--multi-token-prediction")


@mutant(of="ARGV-02", case="author", says="--rotary-base: invalid int value: '500000.0'")
class WritesAFractionForAnInteger(Launcher):
    """Keeps theta as a float, as other frameworks do; the parser requires an integer."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _saying(super().launch(recipe, lane), "--rotary-base", str(float(recipe.rope_theta)))


@mutant(of="ARGV-02", case="two-nodes", says="unrecognized arguments: --tensor-model-parallel 2")
class CutsAFlagShort(Launcher):
    """Abbreviates a flag: argparse guesses abbreviations by default, Megatron's parser does not."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        short = {"--tensor-model-parallel-size": "--tensor-model-parallel"}
        return replace(launch, argv=tuple(short.get(word, word) for word in launch.argv))


@mutant(of="ARGV-02", case="native-stored-sigmoid", says="unrecognized arguments: words")
class JoinsTheArgvAndSplitsIt(Launcher):
    """Passes the argv as one text: a path with a blank arrives as two words."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, argv=tuple(" ".join(launch.argv).split(" ")))


class _Lenient(Launcher):
    """Reads as Megatron-LM does: accepts, and drops."""

    lenient = True


@mutant(of="ARGV-03a", case="native", says="num-layers against the pattern")
class CountsTheLayersOfOnePeriod(_Lenient):
    """Also writes --num-layers, counted from the letters of the pattern instead of the depth. Megatron ignores the
    flag, and a tool that counts parameters from the argv sees 12 layers of 52.
    """

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return _saying(super().launch(recipe, lane), "--num-layers", str(len(recipe.pattern)))


@mutant(of="ARGV-03a", case="native-pp2-mla-mtp2", says="mtp-num-layers against the pattern")
class CountsTheHeadsOnce(_Lenient):
    """Also writes --mtp-num-layers, always as 1, where the pattern says 2."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if recipe.mtp is None else _saying(launch, "--mtp-num-layers", "1")


@mutant(of="ARGV-03a", case="author-pp4-fp8", says="sequence-parallel at tp 1")
class AlwaysAsksForSequenceParallelism(_Lenient):
    """Switches sequence parallelism on in every lane; at TP 1 Megatron switches it off again with a warning."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return launch if "--sequence-parallel" in launch.argv else _saying(launch, "--sequence-parallel")


@mutant(of="ARGV-03b", case="flag-given-twice", says="the argv is accepted, expected a refusal about tensor_model")
class TakesTheLast(Launcher):
    """Takes the last of a repeated flag, as argparse does by default."""

    waived = ("a flag given twice, such as tensor-model-parallel-size",)


@mutant(
    of="ARGV-03b", case="query-groups-without-their-switch", says="expected a refusal about query", bugs=("PRV-27",)
)
class ReadsGroupsOnlyUnderTheSwitch(Launcher):
    """Ignores the number of query groups without its switch: full attention under a GQA recipe."""

    waived = ("num-query-groups without group-query-attention",)


@mutant(of="ARGV-03b", case="layers-against-the-pattern", says="expected a refusal about layers")
class LetsThePatternWin(Launcher):
    """Takes the depth from the pattern and never compares it with --num-layers."""

    waived = ("num-layers against the pattern",)


@mutant(of="ARGV-03b", case="topk-above-the-experts", says="the argv is accepted, expected a refusal about topk")
class NeverComparesTopKWithExperts(Launcher):
    """Accepts top-k 8 of 4 experts; the first forward pass dies on every rank."""

    waived = ("topk above num-experts",)


@mutant(of="ARGV-03b", case="experts-without-letter-e", says="the argv is accepted, expected a refusal about expert")
class CarriesExpertsNobodyBuilds(Launcher):
    """Accepts expert flags with a pattern that has no E: a dense model under the name of a sparse one."""

    waived = ("num-experts without an E",)


@mutant(of="ARGV-03b", case="two-precisions", says="says nothing about fp16: ''")
class RefusesWithoutAWord(Launcher):
    """`assert not (args.fp16 and args.bf16)` refuses with an empty message, and disappears under `python -O`."""

    def read_argv(self, argv: Words, env: Mapping[str, str], world: int) -> Reading:
        reading = super().read_argv(argv, env, world)
        return replace(reading, message="") if "bf16" in reading.message else reading


@mutant(of="ARGV-03c", case="experts-tp2-sp-ep4-on-4", says="a legal argv is refused at validate", bugs=("PG-14",))
class MultipliesEveryDegree(Launcher):
    """Requires tp · pp · ep to divide the world, though EP is carved out of ranks that are already counted."""

    def read_argv(self, argv: Words, env: Mapping[str, str], world: int) -> Reading:
        reading = super().read_argv(argv, env, world)
        axes = ("tensor", "pipeline", "expert")
        flags = [f"--{axis}-model-parallel-size" for axis in axes]
        product = prod(int(argv[argv.index(flag) + 1]) for flag in flags if flag in argv)
        return (
            replace(reading, stage="validate", message=f"{world} ranks, {product} asked")
            if world % product
            else reading
        )


@mutant(of="ARGV-03c", case="query-groups-bf16-pp2", says="a legal flag is dropped")
class IgnoresQueryGroups(Launcher):
    """Reads --num-query-groups and still builds one group per head."""

    def read_argv(self, argv: Words, env: Mapping[str, str], world: int) -> Reading:
        reading = super().read_argv(argv, env, world)
        return (
            replace(reading, dropped={"--num-query-groups": "ends as 8"}) if "--num-query-groups" in argv else reading
        )


@mutant(of="ARGV-02a", case="native-tp2-ep2-etp0", says="ep is read back as 1, but 2 was launched", bugs=("EPD-01",))
class ReadsFollowTpAsOff(Reference):
    """Reads expert TP 0, which follows TP, as "no expert mesh", and so turns EP off."""

    def read_back(self, argv: Words) -> Reread:
        read = super().read_back(argv)
        return replace(read, degrees=replace(read.degrees, ep=read.degrees.ep if read.degrees.etp else 1))


@mutant(of="ARGV-02a", case="overrides", says="optim is read back as")
class ForgetsTheOverrides(Reference):
    """The launch resolves the overrides for its log and starts the trainer with the preset alone."""

    def read_back(self, argv: Words) -> Reread:
        sets = {i for i, word in enumerate(argv) if word == "--set"}
        own = tuple(word for i, word in enumerate(argv) if i not in sets and i - 1 not in sets)
        whole, bare = super().read_back(argv), super().read_back(own)
        return replace(whole, recipe=replace(whole.recipe, optim=bare.recipe.optim, batch=bare.recipe.batch))


@mutant(of="ARGV-02a", case="native-pp2", says="sp is read back as False, but True was launched", bugs=("ARG-05",))
class DropsASwitch(Reference):
    """Forwards every degree except sequence parallelism, which is a switch."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        return replace(launch, argv=tuple(word for word in launch.argv if word != "--sp"))


@mutant(of="ARGV-02a", case="sparse-ranks", says="dsa is read back as", bugs=("ARG-10",))
class KeepsTheFirstOfSeveral(Reference):
    """Only the first of a flag's values arrives: one sparse layer of four."""

    def read_back(self, argv: Words) -> Reread:
        read = super().read_back(argv)
        dsa = read.recipe.dsa
        few = None if dsa is None else replace(dsa, a_ranks=dsa.a_ranks[:1])
        return replace(read, recipe=replace(read.recipe, dsa=few))


KNOWN = {"--recipe", "--mode", "--run", "--set", "--tp", "--pp", "--cp", "--ep", "--etp", "--sp", "--compile"}


@mutant(of="ARGV-02b", case="a-flag-of-another-stack", says="was accepted, expected a refusal", bugs=("ARG-07",))
@mutant(of="ARGV-02b", case="a-renamed-flag", says="was accepted, expected a refusal", bugs=("ARG-07",))
class KeepsWhatItKnows(Reference):
    """`parse_known_args`: whatever is left over is for somebody else."""

    def read_back(self, argv: Words) -> Reread:
        kept: list[str] = []
        for word in argv:
            known = kept and kept[-1] in KNOWN - {"--sp"} and not word.startswith("--")
            if known or word.partition("=")[0] in KNOWN:
                kept.append(word)
        return super().read_back(tuple(kept))


@mutant(of="ARGV-02b", case="a-shortened-flag", says="was accepted, expected a refusal")
class CompletesWhatWasCutOff(Reference):
    """argparse as it comes: the beginning of a flag is the flag."""

    def read_back(self, argv: Words) -> Reread:
        def whole(word: str) -> str:
            return next((flag for flag in sorted(KNOWN) if word.startswith("--") and flag.startswith(word)), word)

        return super().read_back(tuple(map(whole, argv)))


@mutant(of="ARGV-02b", case="with-an-equals-sign", says="the refusal does not name --bogus")
class RefusesWithoutAName(Reference):
    """Compares how many words were read with how many there are."""

    def read_back(self, argv: Words) -> Reread:
        strange = [word for word in argv if word.startswith("--") and word.partition("=")[0] not in KNOWN]
        if strange:
            raise refuse("argv", len(argv), "has words that nothing reads", "give what `rankproof emit` prints")
        return super().read_back(argv)


@mutant(of="ARGV-02c", case="a-flag", says="was accepted, expected a refusal")
@mutant(of="ARGV-02c", case="an-override", says="was accepted, expected a refusal")
class ReadsTheFirst(Reference):
    """Reads each flag where it stands first, and passes over the rest."""

    def read_back(self, argv: Words) -> Reread:
        seen: set[str] = set()
        kept: list[str] = []
        for at, word in enumerate(argv):
            said = f"{word} {argv[at + 1].partition('=')[0]}" if word == "--set" else word
            if word.startswith("--") and said in seen:
                break
            seen |= {said} if word.startswith("--") else set()
            kept.append(word)
        return super().read_back(tuple(kept))


@mutant(of="ARGV-02c", case="a-flag", says="--pp 1 and then --pp 2: not the last")
class DeclaresTheLastAndReadsTheFirst(ReadsTheFirst):
    """Declares that the last of a repeated flag counts, and reads the first."""

    conventions = {"repeated-flag": "last-wins"}


@mutant(of="ARGV-03b", case="flag-given-twice", says="expected the last")
class DeclaresTheLast(Launcher):
    """Declares that the last of a repeated flag counts, and refuses the argv."""

    conventions = {"repeated-flag": "last-wins"}


@mutant(of="ARGV-03b", case="flag-given-twice", says="ends as '1', expected the last")
class TakesTheFirst(TakesTheLast):
    """Declares that the last of a repeated flag counts, and takes the first."""

    conventions = {"repeated-flag": "last-wins"}

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        return replace(super().read_argv(argv, env, world), values={"tensor_model_parallel_size": "1"})


@mutant(of="ARGV-03b", case="sequence-parallel-at-tp1", says="no warning names sequence_parallel")
class OverridesInSilence(Launcher):
    """Declares that it warns of flags that others override, and says nothing."""

    conventions = {"overridden-flag": "warned"}
    waived = ("sequence-parallel at tp 1",)


@mutant(of="ARGV-03b", case="layers-against-the-pattern", says="refused at validate, expected a warning about layers")
class DeclaresAWarning(Launcher):
    """Declares that it warns of flags that others override, and refuses them."""

    conventions = {"overridden-flag": "warned"}

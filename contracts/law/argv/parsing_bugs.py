"""Launches with flags that their launcher does not have, launchers that accept what they will not run, and trainers
that lose half of what they receive."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, with_attributes
from contracts.law.argv._launcher_bugs import Launcher
from contracts.spec import Launch, Reading, refuse
from contracts.stacks.reference.stack import Reference

Words = tuple[str, ...]


def _saying(launch: Launch, flag: str, *values: str) -> Launch:
    """The launch with a flag's value replaced, or the flag appended."""
    argv = list(launch.argv)
    if flag in argv:
        argv[argv.index(flag) + 1] = values[0]
        return replace(launch, argv=tuple(argv))
    return replace(launch, argv=(*argv, flag, *values))


@broken(Launcher, "launch", "ARGV-02[native-pp2-mla-mtp2]: unrecognized arguments: --multi-token-prediction")
def emits_a_flag_that_never_was(former, self, recipe, lane):
    """Writes the switch that articles show for MTP. No version of Megatron-LM ever had it."""
    launch = former(self, recipe, lane)
    return launch if recipe.mtp is None else _saying(launch, "--multi-token-prediction")


@broken(Launcher, "launch", "ARGV-02[author]: --rotary-base: invalid int value: '500000.0'")
def writes_a_fraction_for_an_integer(launch, self, recipe, lane):
    """Keeps theta as a float, as other frameworks do; the parser requires an integer."""
    return _saying(launch(self, recipe, lane), "--rotary-base", str(float(recipe.rope_theta)))


@broken(Launcher, "launch", "ARGV-02[two-nodes]: unrecognized arguments: --tensor-model-parallel 2")
def cuts_a_flag_short(former, self, recipe, lane):
    """Abbreviates a flag: argparse guesses abbreviations by default, Megatron's parser does not."""
    launch = former(self, recipe, lane)
    short = {"--tensor-model-parallel-size": "--tensor-model-parallel"}
    return replace(launch, argv=tuple(short.get(word, word) for word in launch.argv))


@broken(Launcher, "launch", "ARGV-02[native-stored-sigmoid]: unrecognized arguments: words")
def joins_the_argv_and_splits_it(former, self, recipe, lane):
    """Passes the argv as one text: a path with a blank arrives as two words."""
    launch = former(self, recipe, lane)
    return replace(launch, argv=tuple(" ".join(launch.argv).split(" ")))


class _Lenient(Launcher):
    """Reads as Megatron-LM does: accepts, and drops."""

    lenient = True


@broken(_Lenient, "launch", "ARGV-03a[native]: num-layers against the pattern")
def counts_the_layers_of_one_period(launch, self, recipe, lane):
    """Also writes --num-layers, counted from the letters of the pattern instead of the depth. Megatron ignores the
    flag, and a tool that counts parameters from the argv sees 12 layers of 52.
    """
    return _saying(launch(self, recipe, lane), "--num-layers", str(len(recipe.pattern)))


@broken(_Lenient, "launch", "ARGV-03a[native-pp2-mla-mtp2]: mtp-num-layers against the pattern")
def counts_the_heads_once(former, self, recipe, lane):
    """Also writes --mtp-num-layers, always as 1, where the pattern says 2."""
    launch = former(self, recipe, lane)
    return launch if recipe.mtp is None else _saying(launch, "--mtp-num-layers", "1")


@broken(_Lenient, "launch", "ARGV-03a[author-pp4-fp8]: sequence-parallel at tp 1")
def always_asks_for_sequence_parallelism(former, self, recipe, lane):
    """Switches sequence parallelism on in every lane; at TP 1 Megatron switches it off again with a warning."""
    launch = former(self, recipe, lane)
    return launch if "--sequence-parallel" in launch.argv else _saying(launch, "--sequence-parallel")


@mutant(of="ARGV-03b", case="flag-given-twice", says="the argv is accepted, expected a refusal about tensor_model")
class TakesTheLast(Launcher):
    """Takes the last of a repeated flag, as argparse does by default."""

    waived = ("a flag given twice, such as tensor-model-parallel-size",)


with_attributes(
    "ReadsGroupsOnlyUnderTheSwitch",
    "Ignores the number of query groups without its switch: full attention under a GQA recipe.",
    "ARGV-03b[query-groups-without-their-switch]: expected a refusal about query",
    owner=Launcher,
    bugs=("PRV-27",),
    waived=("num-query-groups without group-query-attention",),
)

with_attributes(
    "LetsThePatternWin",
    "Takes the depth from the pattern and never compares it with --num-layers.",
    "ARGV-03b[layers-against-the-pattern]: expected a refusal about layers",
    owner=Launcher,
    waived=("num-layers against the pattern",),
)

with_attributes(
    "NeverComparesTopKWithExperts",
    "Accepts top-k 8 of 4 experts; the first forward pass dies on every rank.",
    "ARGV-03b[topk-above-the-experts]: the argv is accepted, expected a refusal about topk",
    owner=Launcher,
    waived=("topk above num-experts",),
)

with_attributes(
    "CarriesExpertsNobodyBuilds",
    "Accepts expert flags with a pattern that has no E: a dense model under the name of a sparse one.",
    "ARGV-03b[experts-without-letter-e]: the argv is accepted, expected a refusal about expert",
    owner=Launcher,
    waived=("num-experts without an E",),
)


@broken(Launcher, "read_argv", "ARGV-03b[two-precisions]: says nothing about fp16: ''")
def refuses_without_a_word(read_argv, self, argv, env, world):
    """`assert not (args.fp16 and args.bf16)` refuses with an empty message, and disappears under `python -O`."""
    reading = read_argv(self, argv, env, world)
    return replace(reading, message="") if "bf16" in reading.message else reading


@broken(
    Launcher, "read_argv", "ARGV-03c[experts-tp2-sp-ep4-on-4]: a legal argv is refused at validate", bugs=("PG-14",)
)
def multiplies_every_degree(read_argv, self, argv, env, world):
    """Requires tp · pp · ep to divide the world, though EP is carved out of ranks that are already counted."""
    reading = read_argv(self, argv, env, world)
    axes = ("tensor", "pipeline", "expert")
    flags = [f"--{axis}-model-parallel-size" for axis in axes]
    product = prod(int(argv[argv.index(flag) + 1]) for flag in flags if flag in argv)
    return replace(reading, stage="validate", message=f"{world} ranks, {product} asked") if world % product else reading


@broken(Launcher, "read_argv", "ARGV-03c[query-groups-bf16-pp2]: a legal flag is dropped")
def ignores_query_groups(read_argv, self, argv, env, world):
    """Reads --num-query-groups and still builds one group per head."""
    reading = read_argv(self, argv, env, world)
    return replace(reading, dropped={"--num-query-groups": "ends as 8"}) if "--num-query-groups" in argv else reading


@broken(
    Reference, "read_back", "ARGV-02a[native-tp2-ep2-etp0]: ep is read back as 1, but 2 was launched", bugs=("EPD-01",)
)
def reads_follow_tp_as_off(read_back, self, argv):
    """Reads expert TP 0, which follows TP, as "no expert mesh", and so turns EP off."""
    read = read_back(self, argv)
    return replace(read, degrees=replace(read.degrees, ep=read.degrees.ep if read.degrees.etp else 1))


@broken(Reference, "read_back", "ARGV-02a[overrides]: optim is read back as")
def forgets_the_overrides(read_back, self, argv):
    """The launch resolves the overrides for its log and starts the trainer with only the preset."""
    sets = {i for i, word in enumerate(argv) if word == "--set"}
    own = tuple(word for i, word in enumerate(argv) if i not in sets and i - 1 not in sets)
    whole, bare = read_back(self, argv), read_back(self, own)
    return replace(whole, recipe=replace(whole.recipe, optim=bare.recipe.optim, batch=bare.recipe.batch))


@broken(Reference, "launch", "ARGV-02a[native-pp2]: sp is read back as False, but True was launched", bugs=("ARG-05",))
def drops_a_switch(former, self, recipe, lane):
    """Forwards every degree except sequence parallelism, which is a switch."""
    launch = former(self, recipe, lane)
    return replace(launch, argv=tuple(word for word in launch.argv if word != "--sp"))


@broken(Reference, "read_back", "ARGV-02a[sparse-ranks]: dsa is read back as", bugs=("ARG-10",))
def keeps_the_first_of_several(read_back, self, argv):
    """Only the first of a flag's values arrives: one sparse layer of four."""
    read = read_back(self, argv)
    dsa = read.recipe.dsa
    few = None if dsa is None else replace(dsa, a_ranks=dsa.a_ranks[:1])
    return replace(read, recipe=replace(read.recipe, dsa=few))


KNOWN = {"--recipe", "--mode", "--run", "--set", "--tp", "--pp", "--cp", "--ep", "--etp", "--sp", "--compile"}


@broken(
    Reference,
    "read_back",
    "ARGV-02b[a-renamed-flag]: was accepted, expected a refusal",
    "ARGV-02b[a-flag-of-another-stack]: was accepted, expected a refusal",
    bugs=("ARG-07",),
)
def keeps_what_it_knows(read_back, self, argv):
    """`parse_known_args`: whatever is left over is for somebody else."""
    kept = []
    for word in argv:
        known = kept and kept[-1] in KNOWN - {"--sp"} and not word.startswith("--")
        if known or word.partition("=")[0] in KNOWN:
            kept.append(word)
    return read_back(self, tuple(kept))


@broken(Reference, "read_back", "ARGV-02b[a-shortened-flag]: was accepted, expected a refusal")
def completes_what_was_cut_off(read_back, self, argv):
    """argparse as it comes: the beginning of a flag is the flag."""

    def whole(word):
        return next((flag for flag in sorted(KNOWN) if word.startswith("--") and flag.startswith(word)), word)

    return read_back(self, tuple(map(whole, argv)))


@broken(Reference, "read_back", "ARGV-02b[with-an-equals-sign]: the refusal does not name --bogus")
def refuses_without_a_name(read_back, self, argv):
    """Compares how many words were read with how many there are."""
    strange = [word for word in argv if word.startswith("--") and word.partition("=")[0] not in KNOWN]
    if strange:
        raise refuse("argv", len(argv), "has words that nothing reads", "give what `rankproof emit` prints")
    return read_back(self, argv)


@broken(
    Reference,
    "read_back",
    "ARGV-02c[an-override]: was accepted, expected a refusal",
    "ARGV-02c[a-flag]: was accepted, expected a refusal",
)
def reads_the_first(read_back, self, argv):
    """Reads each flag where it stands first, and passes over the rest."""
    seen = set()
    kept = []
    for at, word in enumerate(argv):
        said = f"{word} {argv[at + 1].partition('=')[0]}" if word == "--set" else word
        if word.startswith("--") and said in seen:
            break
        seen |= {said} if word.startswith("--") else set()
        kept.append(word)
    return read_back(self, tuple(kept))


@broken(
    Reference,
    "read_back",
    "ARGV-02c[a-flag-with-an-equals-sign]: was accepted, expected a refusal",
    "ARGV-02c[an-override-with-an-equals-sign]: was accepted, expected a refusal",
)
def counts_flags_as_they_are_written(read_back, self, argv):
    """Takes --pp and --pp=2 for two flags, and leaves out the second."""
    return read_back(self, tuple(word for word in argv if not re.match(r"--(pp|set)=", word)))


with_attributes(
    "DeclaresTheLastAndReadsTheFirst",
    "Declares that the last of a repeated flag counts, and reads the first.",
    "ARGV-02c[a-flag]: --pp 1 and then --pp 2: not the last",
    owner=reads_the_first,
    conventions={"repeated-flag": "last-wins"},
)

with_attributes(
    "DeclaresTheLast",
    "Declares that the last of a repeated flag counts, and refuses the argv.",
    "ARGV-03b[flag-given-twice]: expected the last",
    owner=Launcher,
    conventions={"repeated-flag": "last-wins"},
)


@mutant(of="ARGV-03b", case="flag-given-twice", says="ends as '1', expected the last")
class TakesTheFirst(TakesTheLast):
    """Declares that the last of a repeated flag counts, and takes the first."""

    conventions = {"repeated-flag": "last-wins"}

    def read_argv(self, argv: tuple[str, ...], env: Mapping[str, str], world: int) -> Reading:
        return replace(super().read_argv(argv, env, world), values={"tensor_model_parallel_size": "1"})


with_attributes(
    "OverridesInSilence",
    "Declares that it warns of flags that others override, and says nothing.",
    "ARGV-03b[sequence-parallel-at-tp1]: no warning names sequence_parallel",
    owner=Launcher,
    conventions={"overridden-flag": "warned"},
    waived=("sequence-parallel at tp 1",),
)

with_attributes(
    "DeclaresAWarning",
    "Declares that it warns of flags that others override, and refuses them.",
    "ARGV-03b[layers-against-the-pattern]: refused at validate, expected a warning about layers",
    owner=Launcher,
    conventions={"overridden-flag": "warned"},
)

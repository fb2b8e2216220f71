"""Stacks that write the launcher's syntax with one fault, and launchers that read it with one."""

from __future__ import annotations

from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import refuse
from contracts.spec.launch import Lane, Launch
from contracts.spec.pattern import HybridPattern, LayerNumbers, Translation
from contracts.spec.recipe import Dsa, Recipe
from contracts.stacks.reference.stack import Reference

NAMES = {"*": "attention", "D": "ds_attention", "M": "mamba", "E": "moe", "-": "mlp"}


class Reads(Reference):
    """The reference with a launcher's parser of its own, so that a parser too can be broken in one place."""

    offers = Reference.offers | {"read_pattern"}

    def read_pattern(self, text: str) -> HybridPattern:
        main, *heads = text.split("/")
        for part in (*main.split("|"), *heads):
            if not part or set(part) - NAMES.keys() or {"*", "D"} <= set(main.replace("|", "")):
                raise refuse("text", text, f"{part!r} is not readable", "see the symbols")
        if len(set(heads)) > 1:
            raise refuse("text", text, "has unequal heads", "repeat one")
        layers = main.replace("|", "")
        return HybridPattern(main=tuple(NAMES[s] for s in layers), mtp=tuple(heads[:1]), mtp_depth=len(heads))


@mutant(of="PAT-04", case="nam52-no-moe", says="column 2 is '*', expected '-'", bugs=("HYB-08",))
class WritesAttentionForIdleExperts(Reference):
    """Without experts E becomes `*`: the published sample that has 35 attention layers instead of 13."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, main=right.main.replace("-", "*"))


@mutant(of="PAT-04", case="nam56r-no-moe", says="column 2 is 'E', expected '-'", bugs=("HYB-08",))
class KeepsExpertsThatAreOff(Reference):
    """E stays E without experts; the launcher then builds its default experts, or dies for lack of them."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        return super().translate(pattern, depth, True, dsa, mtp_depth)


@mutant(of="PAT-04", case="cut", says="has 9 symbols, expected 11")
class TranslatesCutsAway(Reference):
    """`|` is not in the table of symbols and disappears: the launcher cuts evenly."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, main=right.main.replace("|", ""))


@mutant(of="PAT-04a", case="nam56r", says="R is carried for layers () (1-based)", bugs=("HYB-08",))
class LosesTheRecurrence(Reference):
    """R becomes `M`, and its layer numbers are not passed on."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, recurrent=LayerNumbers(base=1, numbers=()))


@mutant(of="PAT-04a", case="cut", says="R is carried for layers (1, 5) (1-based)", bugs=("HYB-04",))
class CountsCutsAsLayers(Reference):
    """Layer numbers are columns of the written pattern: each `|` moves every later R by one."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        text = self.render(pattern, depth)
        columns = tuple(column for column, letter in enumerate(text, start=1) if letter == "R")
        return replace(right, recurrent=LayerNumbers(base=1, numbers=columns))


@mutant(of="PAT-04a", case="first-and-last", says="but R is not one of its symbols")
class TellsTheLauncherR(Reference):
    """Over-correction: R stays in the text so that it cannot get lost, but no launcher can read it."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        layers = set(right.recurrent.numbers)
        main = "".join("R" if layer in layers else symbol for layer, symbol in enumerate(right.main, start=1))
        return replace(right, main=main)


@mutant(of="PAT-04b", case="native", says="does not say that it gives up R", bugs=("HYB-08",))
class GivesUpInSilence(Reference):
    """The native lane runs the built-in mixer at the recurrent layers, and its launch does not say so."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return replace(super().launch(recipe, lane), gives_up=())


@mutant(of="PAT-04b", case="author", says="the launch carries R for layers ()", bugs=("HYB-08",))
class LaunchesWithoutRecurrence(Reference):
    """The translation knows the recurrent layers, but the launch does not carry them."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return replace(super().launch(recipe, lane), recurrent=LayerNumbers(base=1, numbers=()))


@mutant(of="PAT-05", case="nam56r", says="`*` stays at column 1")
class SubstitutesDenseAttention(Reference):
    """The runtime has no indexer, so dense attention is run under the sparse name."""

    capabilities = frozenset[str]()

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        return super().translate(pattern, depth, moe, dsa and "dsa" in self.capabilities, mtp_depth)


@mutant(of="PAT-05", case="cut", says="the main pattern is 'DEMDMD'")
class SparsePathForgetsCuts(Reference):
    """The sparse branch of the translator uses a second table, which has no `|`."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, main=right.main.replace("|", "")) if dsa else right


@mutant(of="PAT-05a", case="nam52", says="expected a refusal")
class WidensToEveryAttention(Reference):
    """Megatron accepts no mix, so all thirteen A-ranks become sparse where four were requested."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        if recipe.dsa is not None and lane.mode == "nemo_native":
            every = tuple(range(self.blocks(recipe.pattern, recipe.depth).count("ablock")))
            recipe = replace(recipe, dsa=Dsa(a_ranks=every))
        return super().launch(recipe, lane)


@mutant(of="PAT-05a", case="all-but-one", says="expected a refusal")
class DropsWhatItCannotSay(Reference):
    """Megatron accepts no mix, so the native lane runs dense attention everywhere."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(replace(recipe, dsa=None) if lane.mode == "nemo_native" else recipe, lane)


@mutant(of="PAT-09a", case="nam52", says="sparse attention for layers (8, 9, 10, 11) (1-based)", bugs=("HYB-09",))
class HandsOnRanksAsLayers(Reference):
    """The launch passes the recipe's A-ranks unchanged, and the layer spec reads them as layer numbers."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        ranks = recipe.dsa.a_ranks if recipe.dsa else ()
        return replace(super().launch(recipe, lane), sparse=LayerNumbers(base=1, numbers=ranks))


@mutant(of="PAT-09a", case="from-the-first-layer", says="R for layers (0, 5, 6, 11, 12) (1-based)")
class HandsOnPositions(Reference):
    """The recurrent layers are positions from 0 under a base of 1, so the first of them is not a layer."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        positions = tuple(number - 1 for number in launch.recurrent.numbers)
        return replace(launch, recurrent=LayerNumbers(base=1, numbers=positions))


@mutant(of="PAT-06", case="quarter-twice", says="the main pattern is '*EME*EME*EMM**-*-'", bugs=("HYB-05",))
class CountsHeadsAsLayers(Reference):
    """The head patterns are joined to the main pattern: depth 13 becomes 17."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, main=right.main + "".join(right.mtp))


@mutant(of="PAT-06", case="sparse-main-thrice", says="0 head patterns, expected 3", bugs=("HYB-06",))
class DropsTheHeads(Reference):
    """The exporter knows only `|` and does not write what follows `/`."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        return replace(super().translate(pattern, depth, moe, dsa, mtp_depth), mtp=())


@mutant(of="PAT-06", case="cut", says="the head patterns differ")
class ContinuesThePatternIntoTheHeads(Reference):
    """The heads take the next letters of the tiled pattern, but Megatron requires identical heads."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, mtp=tuple("*EM-"[head % 4] for head in range(mtp_depth)))


@mutant(of="PAT-10", case="nam56r", says="a legal input was refused")
class InventsASymbol(Reads):
    """The recurrence is sent as `R`, which only the stack's own table knows."""

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        right = super().translate(pattern, depth, moe, dsa, mtp_depth)
        return replace(right, main=right.main[:-1] + "R")


@mutant(of="PAT-10", case="sparse-with-heads", says="is read with 0 heads, expected 2", bugs=("HYB-06",))
class LosesHeadsOnTheWay(Reads):
    """The suffix is written, but the text is cut at the first `/` before the launcher reads it."""

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text.split("/", maxsplit=1)[0])


@mutant(of="PAT-10a", case="cut", says="is read as 11 blocks, expected 9", bugs=("HYB-04",))
class ReadsCutsAsBlocks(Reads):
    """The parser builds a block for `|`."""

    def read_pattern(self, text: str) -> HybridPattern:
        right = super().read_pattern(text)
        return replace(right, main=right.main + ("boundary",) * text.count("|"))


@mutant(of="PAT-10a", case="virtual-pipeline", says="blocks, expected 52", bugs=("HYB-05",))
class ReadsHeadsAsLayers(Reads):
    """The parser ignores `/`: the heads of multi-token prediction become the last layers of the model."""

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text.replace("/", ""))


@mutant(of="PAT-10b", case="mixed-attention", says="expected a refusal")
class ReadsAMix(Reads):
    """The parser accepts `*` and `D` together; the model then dies in a layer that was built for the other kind."""

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text.replace("D", "*"))


@mutant(of="PAT-10b", case="unequal-heads", says="expected a refusal")
class ReadsTheFirstHead(Reads):
    """The parser reads only the first head pattern and repeats it for the others."""

    def read_pattern(self, text: str) -> HybridPattern:
        main, *heads = text.split("/")
        return super().read_pattern("/".join((main, *heads[:1] * len(heads))))


@mutant(of="PAT-10b", case="empty-segment", says="expected a refusal")
class DropsEmptyStages(Reads):
    """Two adjacent cuts are read as one: four stages were requested, three are built."""

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text.replace("||", "|"))


@mutant(of="PAT-10b", case="empty", says="is refused, expected a model without layers")
class RefusesTheEmptyPattern(Reads):
    """Declares that an empty pattern is a model without layers, and refuses it."""

    conventions = {"empty-pattern": "no-layers"}


@mutant(of="PAT-10b", case="empty", says="expected no layers")
class ReadsALayerIntoNothing(Reads):
    """Declares that an empty pattern has no layers, and reads one."""

    conventions = {"empty-pattern": "no-layers"}

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text or "*")

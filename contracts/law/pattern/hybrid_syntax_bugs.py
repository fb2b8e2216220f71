"""Stacks that write the launcher's syntax with one fault, and launchers that read it with one."""

from dataclasses import replace

from contracts.contract import mutant
from contracts.law._bugs.broken import broken, with_attributes
from contracts.spec import Dsa, HybridPattern, LayerNumbers, Translation, refuse
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


@broken(Reference, "translate", "PAT-04[nam52-no-moe]: column 2 is '*', expected '-'", bugs=("HYB-08",))
def writes_attention_for_idle_experts(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """Without experts E becomes `*`: the published sample that has 35 attention layers instead of 13."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, main=right.main.replace("-", "*"))


@broken(Reference, "translate", "PAT-04[nam56r-no-moe]: column 2 is 'E', expected '-'", bugs=("HYB-08",))
def keeps_experts_that_are_off(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """E stays E without experts; the launcher then builds its default experts, or dies for lack of them."""
    return translate(self, pattern, depth, True, dsa, mtp_depth)


@broken(Reference, "translate", "PAT-04[cut]: has 9 symbols, expected 11")
def translates_cuts_away(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """`|` is not in the table of symbols and disappears: the launcher cuts evenly."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, main=right.main.replace("|", ""))


@broken(Reference, "translate", "PAT-04a[nam56r]: R is carried for layers () (1-based)", bugs=("HYB-08",))
def loses_the_recurrence(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """R becomes `M`, and its layer numbers are not passed on."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, recurrent=LayerNumbers(base=1, numbers=()))


@broken(Reference, "translate", "PAT-04a[cut]: R is carried for layers (1, 5) (1-based)", bugs=("HYB-04",))
def counts_cuts_as_layers(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """Layer numbers are columns of the written pattern: each `|` moves every later R by one."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    text = self.render(pattern, depth)
    columns = tuple(column for column, letter in enumerate(text, start=1) if letter == "R")
    return replace(right, recurrent=LayerNumbers(base=1, numbers=columns))


@broken(Reference, "translate", "PAT-04a[first-and-last]: but R is not one of its symbols")
def tells_the_launcher_r(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """Over-correction: R stays in the text so that it cannot get lost, but no launcher can read it."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    layers = set(right.recurrent.numbers)
    main = "".join("R" if layer in layers else symbol for layer, symbol in enumerate(right.main, start=1))
    return replace(right, main=main)


@broken(Reference, "launch", "PAT-04b[native]: does not say that it gives up R", bugs=("HYB-08",))
def gives_up_in_silence(launch, self, recipe, lane):
    """The native lane runs the built-in mixer at the recurrent layers, and its launch does not say so."""
    return replace(launch(self, recipe, lane), gives_up=())


@broken(Reference, "launch", "PAT-04b[author]: the launch carries R for layers ()", bugs=("HYB-08",))
def launches_without_recurrence(launch, self, recipe, lane):
    """The translation knows the recurrent layers, but the launch does not carry them."""
    return replace(launch(self, recipe, lane), recurrent=LayerNumbers(base=1, numbers=()))


@mutant(of="PAT-05", case="nam56r", says="`*` stays at column 1")
class SubstitutesDenseAttention(Reference):
    """The runtime has no indexer, so dense attention is run under the sparse name."""

    capabilities = frozenset[str]()

    def translate(self, pattern: str, depth: int, moe: bool, dsa: bool, mtp_depth: int) -> Translation:
        return super().translate(pattern, depth, moe, dsa and "dsa" in self.capabilities, mtp_depth)


@broken(Reference, "translate", "PAT-05[cut]: the main pattern is 'DEMDMD'")
def sparse_path_forgets_cuts(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """The sparse branch of the translator uses a second table, which has no `|`."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, main=right.main.replace("|", "")) if dsa else right


@broken(Reference, "launch", "PAT-05a[nam52]: expected a refusal")
def widens_to_every_attention(launch, self, recipe, lane):
    """Megatron accepts no mix, so all thirteen A-ranks become sparse where four were requested."""
    if recipe.dsa is not None and lane.mode == "nemo_native":
        every = tuple(range(self.blocks(recipe.pattern, recipe.depth).count("ablock")))
        recipe = replace(recipe, dsa=Dsa(a_ranks=every))
    return launch(self, recipe, lane)


@broken(Reference, "launch", "PAT-05a[all-but-one]: expected a refusal")
def drops_what_it_cannot_say(launch, self, recipe, lane):
    """Megatron accepts no mix, so the native lane runs dense attention everywhere."""
    return launch(self, replace(recipe, dsa=None) if lane.mode == "nemo_native" else recipe, lane)


@broken(Reference, "launch", "PAT-09a[nam52]: sparse attention for layers (8, 9, 10, 11) (1-based)", bugs=("HYB-09",))
def hands_on_ranks_as_layers(launch, self, recipe, lane):
    """The launch passes the recipe's A-ranks unchanged, and the layer spec reads them as layer numbers."""
    ranks = recipe.dsa.a_ranks if recipe.dsa else ()
    return replace(launch(self, recipe, lane), sparse=LayerNumbers(base=1, numbers=ranks))


@broken(Reference, "launch", "PAT-09a[from-the-first-layer]: R for layers (0, 5, 6, 11, 12) (1-based)")
def hands_on_positions(former, self, recipe, lane):
    """The recurrent layers are positions from 0 under a base of 1, so the first of them is not a layer."""
    launch = former(self, recipe, lane)
    positions = tuple(number - 1 for number in launch.recurrent.numbers)
    return replace(launch, recurrent=LayerNumbers(base=1, numbers=positions))


@broken(Reference, "translate", "PAT-06[quarter-twice]: the main pattern is '*EME*EME*EMM**-*-'", bugs=("HYB-05",))
def counts_heads_as_layers(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """The head patterns are joined to the main pattern: depth 13 becomes 17."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, main=right.main + "".join(right.mtp))


@broken(Reference, "translate", "PAT-06[sparse-main-thrice]: 0 head patterns, expected 3", bugs=("HYB-06",))
def drops_the_heads(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """The exporter knows only `|` and does not write what follows `/`."""
    return replace(translate(self, pattern, depth, moe, dsa, mtp_depth), mtp=())


@broken(Reference, "translate", "PAT-06[cut]: the head patterns differ")
def continues_the_pattern_into_the_heads(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """The heads take the next letters of the tiled pattern, but Megatron requires identical heads."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, mtp=tuple("*EM-"[head % 4] for head in range(mtp_depth)))


@broken(Reads, "translate", "PAT-10[nam56r]: a legal input was refused")
def invents_a_symbol(translate, self, pattern, depth, moe, dsa, mtp_depth):
    """The recurrence is sent as `R`, which only the stack's own table knows."""
    right = translate(self, pattern, depth, moe, dsa, mtp_depth)
    return replace(right, main=right.main[:-1] + "R")


@broken(Reads, "read_pattern", "PAT-10[sparse-with-heads]: is read with 0 heads, expected 2", bugs=("HYB-06",))
def loses_heads_on_the_way(read_pattern, self, text):
    """The suffix is written, but the text is cut at the first `/` before the launcher reads it."""
    return read_pattern(self, text.split("/", maxsplit=1)[0])


@broken(Reads, "read_pattern", "PAT-10a[cut]: is read as 11 blocks, expected 9", bugs=("HYB-04",))
def reads_cuts_as_blocks(read_pattern, self, text):
    """The parser builds a block for `|`."""
    right = read_pattern(self, text)
    return replace(right, main=right.main + ("boundary",) * text.count("|"))


@broken(Reads, "read_pattern", "PAT-10a[virtual-pipeline]: blocks, expected 52", bugs=("HYB-05",))
def reads_heads_as_layers(read_pattern, self, text):
    """The parser ignores `/`: the heads of multi-token prediction become the last layers of the model."""
    return read_pattern(self, text.replace("/", ""))


@broken(Reads, "read_pattern", "PAT-10b[mixed-attention]: expected a refusal")
def reads_a_mix(read_pattern, self, text):
    """The parser accepts `*` and `D` together; the model then dies in a layer that was built for the other kind."""
    return read_pattern(self, text.replace("D", "*"))


@broken(Reads, "read_pattern", "PAT-10b[unequal-heads]: expected a refusal")
def reads_the_first_head(read_pattern, self, text):
    """The parser reads only the first head pattern and repeats it for the others."""
    main, *heads = text.split("/")
    return read_pattern(self, "/".join((main, *heads[:1] * len(heads))))


@broken(Reads, "read_pattern", "PAT-10b[empty-segment]: expected a refusal")
def drops_empty_stages(read_pattern, self, text):
    """Two adjacent cuts are read as one: four stages were requested, three are built."""
    return read_pattern(self, text.replace("||", "|"))


with_attributes(
    "RefusesTheEmptyPattern",
    "Declares that an empty pattern is a model without layers, and refuses it.",
    "PAT-10b[empty]: is refused, expected a model without layers",
    owner=Reads,
    conventions={"empty-pattern": "no-layers"},
)


@mutant(of="PAT-10b", case="empty", says="expected no layers")
class ReadsALayerIntoNothing(Reads):
    """Declares that an empty pattern has no layers, and reads one."""

    conventions = {"empty-pattern": "no-layers"}

    def read_pattern(self, text: str) -> HybridPattern:
        return super().read_pattern(text or "*")

"""Models whose layers, residuals or sizes differ from the recipe's."""

from dataclasses import replace

from torch import nn

from contracts.law._bugs.numeric import M2RNN, Layer, Model, Reference, broken, mutant
from contracts.spec import Built, Mode, Recipe
from contracts.spec.capacity import ParameterCount


@broken(Reference, "built", "PAT-12a[recurrence-first]: built RAMRAM, the pattern is RAMRAMR", bugs=("HYB-07",))
def builds_whole_periods(built, self, recipe, mode):
    """The tail of the pattern is dropped."""
    period = len(recipe.pattern.replace("|", ""))
    whole = max(recipe.depth - recipe.depth % period, 1)
    return built(self, replace(recipe, pattern=recipe.pattern.replace("|", ""), depth=whole), mode)


@broken(Reference, "parts", "PAT-12a[a-period-and-two]: built AEMEAEMEAEMMAE", bugs=("HYB-08",), leanest="")
def builds_mamba_for_r(former, self):
    """R is built as M: the letter is in the pattern, the argv and the report."""
    parts = former(self)
    return replace(parts, recurrent=parts.mamba2)


@broken(Model, "layer", "PAT-12a[less-than-a-period]: built EMEAEMA", leanest="built EAEAEAA")
def counts_layers_from_one(layer, self, number, parts):
    """Layer n is built from letter n + 1: a 1-based number indexes a 0-based list."""
    return layer(self, (number + 1) % self.recipe.depth, parts)


@broken(Reference, "built", "PAT-12a[depths-are-no-layers]: built AMAAA", bugs=("HYB-05",))
def counts_depths_as_layers(former, self, recipe, mode):
    """The prediction heads are counted as layers."""
    built = former(self, recipe, mode)
    depths = recipe.mtp.depth if recipe.mtp else 0
    heads = tuple(replace(built.layers[-1], number=len(built.layers) + k) for k in range(depths))
    return replace(built, layers=built.layers + heads)


@broken(Reference, "count_parameters", "PAT-12b[nam56r_h200_bf16_v1]: parameters of A, 3817")
def reports_a_bias(count_parameters, self, recipe):
    """The report counts a bias that the model does not have: 3584 of 4 billion parameters."""
    counted = count_parameters(self, recipe)
    more = recipe.ffn_hidden if recipe.mtp else recipe.hidden
    families = dict(counted.families) | {"A": counted.families["A"] + more}
    return replace(counted, total=counted.total + more, active=counted.active + more, families=families)


@broken(Model, "__init__", "PAT-12b[nam56r_h200_mla_mtp1_bf16_v1]: parameters of head")
def ties_though_untied(init, self, recipe, mode, parts):
    """Embedding and output projection are one tensor where the recipe wants two."""
    init(self, recipe, mode, parts)
    if self.head is not None and recipe.mtp is not None:
        self.head.weight = self.embedding.weight


@broken(Model, "__init__", "PAT-12c[tied]: parameters of head, 0 are reported", bugs=("TIE-07",))
def unties_though_tied(init, self, recipe, mode, parts):
    """The output projection has a tensor of its own where the recipe ties it."""
    init(self, recipe, mode, parts)
    if self.head is None:
        self.head = nn.Linear(recipe.hidden, recipe.vocab, bias=False)


@mutant(of="PAT-12d", case="E", says="parameters of E")
class HalvesTheSharedExpert(Reference):
    """The shared expert is half its size, in the model and in the report."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        moe = recipe.moe
        small = recipe if moe is None else replace(recipe, moe=replace(moe, shared_hidden=moe.shared_hidden // 2))
        return super().built(small, mode)

    def count_parameters(self, recipe: Recipe) -> ParameterCount:
        moe = recipe.moe
        small = recipe if moe is None else replace(recipe, moe=replace(moe, shared_hidden=moe.shared_hidden // 2))
        return super().count_parameters(small)


@broken(Reference, "built", "PAT-12d[A]: parameters of A")
def builds_all_heads(built, self, recipe, mode):
    """Every query head has its own key and value head, though the recipe asks for 8 groups."""
    return built(self, replace(recipe, kv_groups=recipe.heads), mode)


@broken(Layer, "forward", "PAT-12e[every-family]: the logit tensor differs", bugs=("SSM-09",), leanest="")
def drops_the_residual_of_one_family(forward, self, x, packing):
    """One block family has no residual connection: each mixer adds its own, and one forgets it."""
    out = forward(self, x, packing)
    return out._replace(y_BTD=out.y_BTD - x) if isinstance(self.mixer, M2RNN) else out


@broken(Layer, "forward", "PAT-12e[custom-mixers]: the logit tensor differs")
def adds_the_residual_twice(forward, self, x, packing):
    """The residual is added in the layer and again around it."""
    out = forward(self, x, packing)
    return out._replace(y_BTD=out.y_BTD + x)


@broken(Layer, "forward", "PAT-12e[every-family]: the logit tensor differs", bugs=("SSM-09",))
def takes_the_norm_for_the_residual(forward, self, x, packing):
    """The residual branches off after the norm."""
    normed = self.norm(x)
    out = self.mixer(normed, packing, {})
    return out._replace(y_BTD=normed + out.y_BTD)


@broken(Model, "run", "PAT-12e[tied]: the logit tensor differs")
def shares_one_norm(run, self, layer, x, pack):
    """Every layer runs the norm of layer 0; the others are loaded and never used."""
    layer.norm = self.layers["0"].norm
    return run(self, layer, x, pack)


@broken(Model, "trunk", "PAT-12e[every-family]: the logit tensor differs", leanest="")
def runs_layers_in_text_order(trunk, self, x, pack):
    """Layers run in the order of their names as text: 0, 1, 10, 11, 2."""
    order = sorted(self.layers, key=str)  # 0, 1, 10, 11, 2
    self.layers = nn.ModuleDict({name: self.layers[name] for name in order})
    return trunk(self, x, pack)


@broken(Model, "trunk", "PAT-12e[every-family]: aux loss is", bugs=("AUX-12",), leanest="")
def averages_router_losses_over_all_layers(trunk, self, x, pack):
    """Router losses are averaged over all layers of a hybrid, most of which route nothing."""
    out, losses, seen = trunk(self, x, pack)
    return out, {name: each / len(self.layers) for name, each in losses.items()}, seen


@broken(Model, "embed", "PAT-12e[sparse-by-rank]: the logit tensor differs")
def scales_the_embedding(embed, self, tokens_BT):
    """Embeddings are multiplied by the square root of their width, as in another model family."""
    width = self.recipe.hidden**0.5
    return embed(self, tokens_BT) * width


@broken(Model, "__init__", "PAT-12e[wide-eps]: the logit tensor differs")
def final_norm_has_the_usual_epsilon(init, self, recipe, mode, parts):
    """Every norm has the recipe's epsilon but the last, which has the class's default."""
    init(self, recipe, mode, parts)
    self.norm.eps = 1e-5


@broken(Model, "predict", "PAT-12e[tied]: the logit tensor differs")
def final_norm_without_weight(predict, self, hidden_BTD):
    """The final norm is fused into the output projection without its weight."""
    return predict(self, hidden_BTD / self.norm.weight)

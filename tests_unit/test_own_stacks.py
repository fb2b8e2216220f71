"""Stacks that the kit was not written for: what they say of their routing, tied weights, weights cut by hand."""

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.court.judge import judge
from contracts.spec import Abilities
from tests_unit._parties.running import ROOT, rankproof

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402  (after the question whether there is torch)

from contracts.instruments import numerics  # noqa: E402
from contracts.law._support.recipes import DENSE  # noqa: E402
from contracts.spec import BlockCall, Moe, NotOffered, Recipe, Session, Step, Tokens  # noqa: E402
from contracts.stacks.kit.adapter import Adapter, Steps  # noqa: E402
from contracts.stacks.kit.declining import lacks  # noqa: E402
from contracts.stacks.kit.links import Link, same  # noqa: E402
from tests_unit._parties.law import LAW  # noqa: E402

EXAMPLES = ROOT / "docs/examples"


class Experts(nn.Module):
    """Experts after a softmax, as in Mixtral."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        moe = recipe.moe
        self.norm, self.top_k = nn.RMSNorm(recipe.hidden, recipe.norm_eps), moe.top_k
        self.router = nn.Linear(recipe.hidden, moe.experts, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.empty(moe.experts, moe.expert_hidden, recipe.hidden)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(moe.experts, recipe.hidden, moe.expert_hidden))

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_ND = self.norm(x_BTD).flatten(0, 1)
        score_NK, expert_NK = self.router(x_ND).topk(self.top_k)
        gate_NK = score_NK.softmax(-1)
        inner = nn.functional.silu(torch.einsum("nd,efd->nef", x_ND, self.w1))
        each_NED = torch.einsum("nef,edf->ned", inner * torch.einsum("nd,efd->nef", x_ND, self.w3), self.w2)
        chosen_NKD = each_NED.gather(1, expert_NK[..., None].expand(-1, -1, x_ND.shape[-1]))
        return (gate_NK[..., None] * chosen_NKD).sum(1).view_as(x_BTD), expert_NK, gate_NK


class Routes(Adapter):
    """A stack of experts, which says what `says` names."""

    name, version, says = "routes", "1", ("experts", "gates")
    abilities = Abilities(has=frozenset({"experts", "swiglu", "softmax", "float64"}))

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        names = {"norm.weight": "norm.weight", "router.weight": "mixer.router.weight"}
        return [same(*each) for each in (names | {n: f"mixer.experts.{n}" for n in ("w1", "w2", "w3")}).items()]

    def layer(self, number: int) -> str:
        raise NotImplementedError

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        raise NotImplementedError

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return Experts(recipe)

    def branch(
        self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        y_BTD, experts, gates = layer(x_BTD)
        return y_BTD, {name: {"experts": experts}.get(name, gates) for name in self.says}


@pytest.mark.unit
@pytest.mark.parametrize(("says", "outcome", "words"), [
    (("experts", "gates"), "holds", ""),
    ((), "not offered", "its blocks report nothing in `seen`, and not 'experts'"),
    (("experts",), "not offered", "its blocks report experts in `seen`, and not 'gates'"),
    (("expert",), "broken", "a branch says expert; of its routing it can say experts, gates, counts"),
])  # fmt: skip
def test_routing_is_judged_only_by_the_parts_that_a_stack_reports(
    says: tuple[str, ...], outcome: str, words: str
) -> None:
    stack = Routes()
    stack.says = says  # type: ignore[assignment]  # of another length
    result = judge(LAW.contracts["MOE-01c"], "softmax", stack)
    assert (result.outcome, words in result.words) == (outcome, True), result.words


@pytest.mark.unit
def test_a_stack_without_float64_is_asked_its_blocks_in_float32() -> None:
    class Single(Routes):
        abilities = Abilities(
            has=Routes.abilities.has - {"float64"}, lacks=(lacks("float64", "stack", "its router is float32"),)
        )

    result = judge(LAW.contracts["MOE-01c"], "softmax", Single())
    assert (result.outcome, result.dtype) == ("holds", "float32"), result.words
    result = judge(LAW.contracts["PREC-01d"], "blockwise", Single())
    assert result.outcome == "not offered", result.words


@pytest.mark.unit
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's norm under autocast
def test_float32_weights_meet_bfloat16_activations_only_in_a_stack_that_autocasts() -> None:
    moe = Moe(experts=4, top_k=2, expert_hidden=16, shared_hidden=0, aux_loss=0.0)
    recipe = replace(DENSE, pattern="E", depth=1, activation="swiglu", moe=moe)
    stack, seen = Routes(), dict[str, Tensor]()
    drawn = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(each.shape, generator=drawn) / 4
               for name, each in stack.block_weights(recipe, 0, "nemo_native").items()}  # fmt: skip
    x_BTD = torch.randn(2, 5, recipe.hidden, generator=drawn).bfloat16()
    call = BlockCall(recipe=recipe, layer=0, weights=numerics.arrays(weights), x=numerics.array(x_BTD))
    for stack.autocasts, lacks_it in ((None, "adapter"), (False, "stack")):
        with pytest.raises(NotOffered, match="weights and activations have one dtype") as declined:
            stack.run_block(call)
        assert declined.value.lack == lacks_it
    stack.autocasts = True
    seen["mixed"] = numerics.tensor(stack.run_block(call).y).float()
    seen["float32"] = numerics.tensor(stack.run_block(replace(call, x=numerics.array(x_BTD.float()))).y)
    off = float((seen["mixed"] - seen["float32"]).norm() / seen["float32"].norm())
    assert 1e-4 < off < 2e-2  # products in bfloat16, of the same weights


@pytest.mark.unit
def test_a_tied_weight_is_found_under_the_name_of_its_link() -> None:
    class Tied(Steps):
        def __init__(self, links: Sequence[Link]) -> None:
            super().__init__(Session(recipe=DENSE, steps=0), links)
            self.module = nn.ModuleDict({"head": nn.Linear(2, 3, bias=False), "wte": nn.Embedding(3, 2)})
            self.module["wte"].weight = self.module["head"].weight  # type: ignore[index]  # a ModuleDict

        def forward(self, batch: Tokens, backward: bool) -> Any:
            raise NotImplementedError

        def step(self, batch: Tokens) -> Step:
            raise NotImplementedError

    assert {*Tied([same("wte.weight", "embedding.weight")]).parameters()} == {"wte.weight"}
    assert {*Tied([]).parameters()} == {"head.weight"}


@pytest.mark.slow
def test_a_stack_that_shards_weights_by_hand_is_judged_on_several_ranks(tmp_path: Path) -> None:
    text = (EXAMPLES / "tp_trainer/tp_trainer.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    alone = text.replace("        dist.all_reduce(grad, group=ctx.group)\n", "")
    assert text != alone
    for name, given in {"whole": text, "alone": alone}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tp_trainer.py").write_text(given, encoding="utf-8")
        (tmp_path / name / "tp_lane.py").write_bytes((EXAMPLES / "tp_trainer/tp_lane.py").read_bytes())
    asked = ("check", "--stack", "tp_lane:Stack", "--with", "none", "--ranks", "2", "--profile")
    done = rankproof(*asked, "PAR-01e[plain-tp2],OPT-04e[plain-tp2]", cwd=tmp_path / "whole")
    assert "CONFORMANT: tp-trainer 1" in done.stdout, done.stdout
    assert "(2 holds)" in done.stdout
    done = rankproof(*asked, "PAR-01e[plain-tp2]", cwd=tmp_path / "alone")
    assert "and not 3.6072: the gradient of layers" in " ".join(done.stdout.split()), done.stdout
    assert "VIOLATED: tp-trainer 1" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("litgpt") is None, reason="pip install litgpt==0.5.13")
def test_litgpt_is_judged_without_a_broken_item() -> None:
    done = rankproof("init", "--probe", "litgpt_lane:Stack", cwd=EXAMPLES / "litgpt")
    assert "lm is 4.68673" in done.stdout, done.stdout  # PAR-05a: a mean of the means of microbatches
    assert "decays by 0.3 … 0.3, expected none" in done.stdout
    assert "broken" not in done.stdout
    assert "faults of the run" not in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("olmo_core") is None, reason="pip install ai2-olmo-core==3.0.0")
def test_olmo_core_violates_only_what_is_declared(tmp_path: Path) -> None:
    files = (EXAMPLES / "olmo_core").glob("*.py")
    assert sum(len(each.read_text(encoding="utf-8").splitlines()) for each in files) <= 600
    asked = ("check", "--stack", "olmo_lane:Stack", "--profile", "numeric")
    done = rankproof(*asked, "--deviations", "deviations.toml", "--report", str(tmp_path), cwd=EXAMPLES / "olmo_core")
    assert "CONFORMANT: OLMo-core 3.0.0" in done.stdout, done.stdout
    assert "38 deviates" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nemo_automodel") is None, reason="see docs/examples/nemo_automodel")
def test_nemo_automodel_violates_only_what_is_declared(tmp_path: Path) -> None:
    asked = ("check", "--stack", "nemo_lane:Stack", "--profile", "BLK,MOE,OPT", "--deviations", "deviations.toml")
    done = rankproof(*asked, "--report", str(tmp_path), cwd=EXAMPLES / "nemo_automodel")
    assert "deviates" in done.stdout, done.stdout
    assert not [word for word in (" violated", " broken", "faults of the run") if word in done.stdout.splitlines()[-1]]

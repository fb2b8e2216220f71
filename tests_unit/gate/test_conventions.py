"""Conventions: what may be declared, who declares it, and that each choice is judged."""

from dataclasses import replace
from types import MappingProxyType

import pytest

pytest.importorskip("torch")
from contracts.court.judge import judge
from contracts.harness.parties import subject_of
from contracts.law.blocks.loss_bugs import hands_over_bfloat16_logits
from contracts.law.blocks.multi_token_prediction_bugs import reads_behind_the_norms
from contracts.law.blocks.rope_bugs import angles_are_float32, rounds_the_turns
from contracts.law.moe.balance_losses_bugs import balances_the_batch
from contracts.law.moe.capacity_bugs import counts_what_was_kept
from contracts.law.moe.padding_bugs import gives_slots_to_padding
from contracts.law.moe.routing_bugs import RoundsTheRoutersWeight
from contracts.law.moe.selection_bias_bugs import centres_each_move
from contracts.law.optimizer.parameter_groups_bugs import TurnsProjectionsAsOneMatrix, decays_norms
from contracts.law.optimizer.schedule_bugs import StartsAtZero
from contracts.law.optimizer.updates_bugs import orthogonalizes_in_bfloat16
from contracts.law.optimizer.validation_bugs import takes_the_mean_of_batches
from contracts.law.parallel.blends_bugs import draws_and_does_not_say_so
from contracts.law.parallel.gradient_accumulation_bugs import takes_the_mean_of_means
from contracts.law.topology.group_creation_bugs import one_call_for_each_axis
from contracts.law.topology.mesh_sizes_bugs import stops_at_the_first_refusal
from contracts.spec import CONVENTIONS, Built, Mode, Recipe, Refused, conventions_of
from contracts.stacks.reference.stack import Reference
from contracts.stacks.serve import introduce
from tests_unit._parties.bugs import LAW


def test_unknown_conventions_and_choices_are_refused_all_at_once() -> None:
    class Inventive(Reference):
        conventions = MappingProxyType({"rope-angles": "float16", "colour": "red"})

    with pytest.raises(Refused) as caught:
        subject_of(Inventive(), "here")
    for words in ("rope-angles", "float16", "colour", "is no convention", "the choices are exact, float32"):
        assert words in str(caught.value)


def test_a_record_has_the_declared_conventions_that_differ_from_the_default() -> None:
    class Declaring(Reference):
        conventions = MappingProxyType({"rope-angles": "float32", "misfits": "all"})

    assert introduce(Declaring()).conventions == {"rope-angles": "float32"}
    assert subject_of(Declaring(), "here").conventions == {"rope-angles": "float32"}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_choice_of_a_convention_has_a_mutant_that_declares_it_and_violates_it(name: str) -> None:
    following = {id for id, each in LAW.contracts.items() if name in each.conventions}
    assert following, f"no contract follows {name}"
    declared = {
        conventions_of(each.make)[name]
        for each in LAW.mutants
        if each.of in following and name in getattr(each.make, "conventions", {})
    }
    assert declared == {*CONVENTIONS[name].names[1:]}, f"mutants of {name} declare {sorted(declared)}"


class DecaysEverything(decays_norms):
    """Its table says so too."""

    def built(self, recipe: Recipe, mode: Mode) -> Built:
        answer = super().built(recipe, mode)
        rows = (replace(row, weight_decay=recipe.optim.weight_decay) for row in answer.parameters)
        return replace(answer, parameters=tuple(rows))


KEPT = {
    "BLK-03j[1027-tokens-theta-10]": (angles_are_float32, {"rope-angles": "float32"}),
    "BLK-03m[cosines]": (rounds_the_turns, {"rope-turns": "activations"}),
    "MOE-01e[sigmoid]": (RoundsTheRoutersWeight, {"sigmoid-router": "bfloat16-weight"}),
    "MOE-01e[softmax]": (RoundsTheRoutersWeight, {"softmax-router": "bfloat16-weight"}),
    "MOE-02a[mixed-bfloat16]": (RoundsTheRoutersWeight, {"softmax-router": "bfloat16-weight"}),
    "MOE-06a[large]": (centres_each_move, {"bias-moves": "centred"}),
    "MOE-06h[from-one]": (centres_each_move, {"bias-moves": "centred"}),
    "BLK-06t[bf16]": (hands_over_bfloat16_logits, {"logits-dtype": "activations"}),
    "MOE-06a[full]": (counts_what_was_kept, {"capacity-counts": "kept"}),
    "MOE-05a[sequences-apart]": (balances_the_batch, {"balance-over": "microbatch"}),
    "MOE-09b[a-row-of-padding]": (gives_slots_to_padding, {"padding-slots": "as-others"}),
    "BLK-06p[two-depths]": (reads_behind_the_norms, {"prediction-input": "normed"}),
    "BLK-06m[under-prediction-heads]": (reads_behind_the_norms, {"prediction-input": "normed"}),
    "OPT-02a[adamw]": (DecaysEverything, {"undecayed": "nothing"}),
    "OPT-04a[muon-never-clipped]": (orthogonalizes_in_bfloat16, {"muon-products": "bfloat16"}),
    "OPT-01b[muon@pairs]": (orthogonalizes_in_bfloat16, {"muon-products": "bfloat16"}),
    "OPT-01b[streams-and-swiglu]": (TurnsProjectionsAsOneMatrix, {"muon-projections": "stacked"}),
    "OPT-06b[few-labels]": (takes_the_mean_of_batches, {"validation-mean": "batches"}),
    "PAR-05b[four]": (takes_the_mean_of_means, {"window-divides-by": "microbatch-means"}),
    "PAR-20e[eight]": (draws_and_does_not_say_so, {"blend-order": "drawn"}),
    "OPT-05b[cosine]": (StartsAtZero, {"first-rate": "step-0"}),
    "OPT-05c[more-sequences]": (StartsAtZero, {"first-rate": "step-0"}),
    "TOPO-07[borrowed-pp2-tp2-ep6-etp1]": (one_call_for_each_axis, {"communicators": "purpose"}),
    "TOPO-01b[pp2-tp3-ep5-on-8]": (stops_at_the_first_refusal, {"misfits": "first"}),
}


@pytest.mark.parametrize("item", KEPT)
def test_a_stack_that_follows_its_declared_convention_holds(item: str) -> None:
    broken, conventions = KEPT[item]
    id, _, case = item.rstrip("]").partition("[")
    result = judge(LAW.contracts[id], case, type("Keeping", (broken,), {"conventions": conventions})())
    assert (result.outcome, result.words) == ("holds", "")
    assert judge(LAW.contracts[id], case, broken()).outcome == "violated"

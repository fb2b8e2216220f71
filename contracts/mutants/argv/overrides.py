"""Stacks whose overrides miss their key, change too much, or vanish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from contracts.contract import mutant
from contracts.spec.errors import Refused, refuse
from contracts.spec.launch import Lane, Launch
from contracts.spec.recipe import Recipe
from contracts.stacks.reference.launch import overrides
from contracts.stacks.reference.stack import Reference


def _with(lane: Lane, changes: Mapping[str, str]) -> Lane:
    return replace(lane, overrides=dict(changes))


@mutant(of="ARGV-08", case="min-lr", says="a legal input was refused", bugs=("ARG-01",))
class StripsThePrefixByLetters(Reference):
    """`key.lstrip("optim.")` strips letters, not a prefix: `optim.min_lr` becomes `n_lr`."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        keys = {k: f"optim.{k.lstrip('optim.')}" if k.startswith("optim.") else k for k in lane.overrides}  # the bug
        return super().launch(recipe, _with(lane, {keys[k]: text for k, text in lane.overrides.items()}))


@mutant(of="ARGV-08", case="sequence", says="--max-position-embeddings is 4096, expected 8192", bugs=("ARG-13",))
class CapturesTheLengthEarly(Reference):
    """The override arrives after the positions were sized: the data is twice as long as the model has positions for."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        argv = list(launch.argv)
        argv[argv.index("--max-position-embeddings") + 1] = str(recipe.seq_length)
        return replace(launch, argv=tuple(argv))


@mutant(of="ARGV-08", case="lr", says="also changes {'--min-lr': '0.0003', '--lr-warmup-iters'")
class BuildsTheBundleAnew(Reference):
    """Overriding one field of the optimizer rebuilds the other fields from their class defaults."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        whole = {"lr": float(lane.overrides["optim.lr"])} if "optim.lr" in lane.overrides else {}
        text = json.dumps({**vars(recipe.optim), "min_lr": 3e-4, "warmup": 0, **whole})
        return super().launch(recipe, _with(lane, {"optim": text}) if whole else lane)


@mutant(of="ARGV-08", case="top-k", says="the override of moe.top_k removes --disable-bias-linear")
class ReplacesTheRequiredFlags(Reference):
    """Overrides replace all extra arguments, including those that the recipe requires."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        launch = super().launch(recipe, lane)
        required = {"--disable-bias-linear", "--moe-grouped-gemm"} if lane.overrides else set()
        return replace(launch, argv=tuple(word for word in launch.argv if word not in required))


@mutant(of="ARGV-08", case="micro-batch", says="--micro-batch-size is 4, expected 2", bugs=("ARG-02",))
class LetsTheBaseWin(Reference):
    """Merges in the wrong order: the base recipe's values overwrite the override."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        return super().launch(recipe, _with(lane, {}))


@mutant(of="ARGV-08a", case="a-letter-twice", says="the override optim.lrr=1e-4 was accepted, expected a refusal")
class DropsUnknownKeys(Reference):
    """Applies the keys it knows and drops the rest: a misspelt learning rate trains with the old one."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        known = overrides.keys(recipe)
        return super().launch(recipe, _with(lane, {k: text for k, text in lane.overrides.items() if k in known}))


@mutant(of="ARGV-08a", case="another-separator", says="does not offer moe.top_k")
class RefusesWithoutHelp(Reference):
    """Says only that the key is unknown."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        try:
            return super().launch(recipe, lane)
        except Refused as refused:
            if "override" not in refused.fields:
                raise
        raise refuse("override", ", ".join(lane.overrides), "is unknown", "look it up")


@mutant(of="ARGV-08b", case="fraction-of-an-expert", says="the override moe.top_k=2.5 was accepted")
class CastsToTheTypeItWants(Reference):
    """`int(float(text))`: two and a half experts become two."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        def cast(text: str) -> str:
            return text.partition(".")[0] if text.replace(".", "").isdigit() else text

        return super().launch(recipe, _with(lane, {key: cast(text) for key, text in lane.overrides.items()}))


@mutant(of="ARGV-08b", case="more-than-there-are", says="the override moe.top_k=17 was accepted")
class ClampsToWhatFits(Reference):
    """Lowers top-k to the number of experts instead of refusing it."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        changes = dict(lane.overrides)
        if recipe.moe is not None and changes.get("moe.top_k", "").isdigit():
            changes["moe.top_k"] = str(min(int(changes["moe.top_k"]), recipe.moe.experts))
        return super().launch(recipe, _with(lane, changes))


@mutant(of="ARGV-08c", case="the-lane-gives-degrees", says="the override degrees.pp=4 was accepted", bugs=("ARG-23",))
class DiscardsOutvotedSettings(Reference):
    """A sanity check discards parallel settings that the lane overrules, while the recipe keeps showing them."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        kept = {key: text for key, text in lane.overrides.items() if not key.startswith("degrees.")}
        return super().launch(recipe, _with(lane, kept))


@mutant(of="ARGV-08c", case="feature-is-off", says="the override mtp.depth=2 was accepted")
class IgnoresWhatIsOff(Reference):
    """Drops settings of a feature that is off, where the operator meant to turn it on."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        kept = {
            k: t for k, t in lane.overrides.items() if "." not in k or getattr(recipe, k.partition(".")[0]) is not None
        }
        return super().launch(recipe, _with(lane, kept))


@mutant(of="ARGV-08d", case="save-None", says="reaches the launch as the text './None'", bugs=("ARG-22",))
class TakesNoneForAName(Reference):
    """Reads JSON, in which `None` is no word, so it is a text and every test for truth passes."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        texts = {key: "./None" if text == "None" else text for key, text in lane.overrides.items()}
        return super().launch(recipe, _with(lane, texts))


@mutant(of="ARGV-08d", case="path-null", says="has no effect: /data/text is still in the launch")
class SkipsWhatIsNothing(Reference):
    """Over-correction: applies only overrides that have a value, so a path can never be unset."""

    def launch(self, recipe: Recipe, lane: Lane) -> Launch:
        given = {key: text for key, text in lane.overrides.items() if text not in ("null", "None")}
        return super().launch(recipe, _with(lane, given))

"""Stacks whose overrides miss their key, change too much, or vanish."""

import json
from dataclasses import replace

from contracts.law._bugs.broken import broken
from contracts.spec import Refused, refuse
from contracts.stacks.reference.launch import megatron_flags, overrides
from contracts.stacks.reference.stack import Reference


def _with(lane, changes):
    return replace(lane, overrides=dict(changes))


@broken(Reference, "launch", "ARGV-08[min-lr]: a legal input was refused", bugs=("ARG-01",))
def strips_the_prefix_by_letters(launch, self, recipe, lane):
    """`key.lstrip("optim.")` strips letters, not a prefix: `optim.min_lr` becomes `n_lr`."""
    keys = {k: f"optim.{k.lstrip('optim.')}" if k.startswith("optim.") else k for k in lane.overrides}  # the bug
    return launch(self, recipe, _with(lane, {keys[k]: text for k, text in lane.overrides.items()}))


@broken(Reference, "launch", "ARGV-08[sequence]: --max-position-embeddings is 4096, expected 8192", bugs=("ARG-13",))
def captures_the_length_early(former, self, recipe, lane):
    """The override arrives after the positions were sized: the data is twice as long as the model has positions for."""
    launch = former(self, recipe, lane)
    argv = list(launch.argv)
    argv[argv.index("--max-position-embeddings") + 1] = str(recipe.seq_length)
    return replace(launch, argv=tuple(argv))


@broken(Reference, "launch", "ARGV-08[lr]: also changes {'--min-lr': '0.0003', '--lr-warmup-iters'")
def builds_the_bundle_anew(launch, self, recipe, lane):
    """Overriding one field of the optimizer rebuilds the other fields from their class defaults."""
    whole = {"lr": float(lane.overrides["optim.lr"])} if "optim.lr" in lane.overrides else {}
    text = json.dumps({**vars(recipe.optim), "min_lr": 3e-4, "warmup": 0, **whole})
    return launch(self, recipe, _with(lane, {"optim": text}) if whole else lane)


@broken(Reference, "launch", "ARGV-08[top-k]: the override of moe.top_k removes --disable-bias-linear")
def replaces_the_required_flags(former, self, recipe, lane):
    """Overrides replace all extra arguments, including those that the recipe requires."""
    launch = former(self, recipe, lane)
    required = {"--disable-bias-linear", "--moe-grouped-gemm"} if lane.overrides else set()
    return replace(launch, argv=tuple(word for word in launch.argv if word not in required))


@broken(Reference, "launch", "ARGV-08[micro-batch]: --micro-batch-size is 4, expected 2", bugs=("ARG-02",))
def lets_the_base_win(launch, self, recipe, lane):
    """Merges in the wrong order: the base recipe's values overwrite the override."""
    return launch(self, recipe, _with(lane, {}))


@broken(
    Reference,
    "launch",
    "ARGV-08[switches-off]: --qk-layernorm is given, expected absent",
    bugs=("ARG-20",),
)
def takes_any_text_for_true(launch, self, recipe, lane):
    """argparse's `type=bool`: every text but the empty one is true, so `false` turns a switch on."""
    return launch(self, recipe, _with(lane, {k: "true" if t == "false" else t for k, t in lane.overrides.items()}))


@broken(
    Reference,
    "launch",
    "ARGV-08[another-dtype]: --bf16 is given, expected absent",
    "ARGV-08[no-dtype]: --bf16 is given",
)
def appends_the_new_precision(former, self, recipe, lane):
    """The base recipe's flags stay and the override appends its own: which of two precisions runs, the parser says."""
    launch, base = former(self, recipe, lane), former(self, recipe, _with(lane, {}))
    stale = [word for word in base.argv if word in ("--bf16", "--fp16") and word not in launch.argv]
    return replace(launch, argv=(*launch.argv, *stale))


@broken(megatron_flags, "_moe", "ARGV-08[one-expert]: --moe-router-pre-softmax is absent")
def leaves_one_expert_its_softmax(flags, recipe):
    """Top-1 routing under a softmax over the chosen: Megatron-Core's reader refuses the command, on the node."""
    return tuple(word for word in flags(recipe) if word != "--moe-router-pre-softmax")


@broken(Reference, "launch", "ARGV-08a[a-letter-twice]: the override optim.lrr=1e-4 was accepted, expected a refusal")
def drops_unknown_keys(launch, self, recipe, lane):
    """Applies the keys it knows and drops the rest: a misspelt learning rate trains with the old one."""
    known = overrides.keys(recipe)
    return launch(self, recipe, _with(lane, {k: text for k, text in lane.overrides.items() if k in known}))


@broken(Reference, "launch", "ARGV-08a[another-separator]: does not offer moe.top_k")
def refuses_without_help(launch, self, recipe, lane):
    """Says only that the key is unknown."""
    try:
        return launch(self, recipe, lane)
    except Refused as refused:
        if "override" not in refused.fields:
            raise
    raise refuse("override", ", ".join(lane.overrides), "is unknown", "look it up")


@broken(Reference, "launch", "ARGV-08b[fraction-of-an-expert]: the override moe.top_k=2.5 was accepted")
def casts_to_the_type_it_wants(launch, self, recipe, lane):
    """`int(float(text))`: two and a half experts become two."""

    def cast(text):
        return text.partition(".")[0] if text.replace(".", "").isdigit() else text

    return launch(self, recipe, _with(lane, {key: cast(text) for key, text in lane.overrides.items()}))


@broken(Reference, "launch", "ARGV-08b[more-than-there-are]: the override moe.top_k=17 was accepted")
def clamps_to_what_fits(launch, self, recipe, lane):
    """Lowers top-k to the number of experts instead of refusing it."""
    changes = dict(lane.overrides)
    if recipe.moe is not None and changes.get("moe.top_k", "").isdigit():
        changes["moe.top_k"] = str(min(int(changes["moe.top_k"]), recipe.moe.experts))
    return launch(self, recipe, _with(lane, changes))


@broken(
    Reference, "launch", "ARGV-08c[the-lane-gives-degrees]: the override degrees.pp=4 was accepted", bugs=("ARG-23",)
)
def discards_outvoted_settings(launch, self, recipe, lane):
    """A sanity check discards parallel settings that the lane overrules, while the recipe keeps showing them."""
    kept = {key: text for key, text in lane.overrides.items() if not key.startswith("degrees.")}
    return launch(self, recipe, _with(lane, kept))


@broken(Reference, "launch", "ARGV-08c[feature-is-off]: the override mtp.depth=2 was accepted")
def ignores_what_is_off(launch, self, recipe, lane):
    """Drops settings of a feature that is off, where the operator meant to turn it on."""
    kept = {k: t for k, t in lane.overrides.items() if "." not in k or getattr(recipe, k.partition(".")[0]) is not None}
    return launch(self, recipe, _with(lane, kept))


@broken(Reference, "launch", "ARGV-08d[save-None]: reaches the launch as the text './None'", bugs=("ARG-22",))
def takes_none_for_a_name(launch, self, recipe, lane):
    """Reads JSON, in which `None` is no word, so it is a text and every test for truth passes."""
    texts = {key: "./None" if text == "None" else text for key, text in lane.overrides.items()}
    return launch(self, recipe, _with(lane, texts))


@broken(Reference, "launch", "ARGV-08d[path-null]: has no effect: /data/text is still in the launch")
def skips_what_is_nothing(launch, self, recipe, lane):
    """Over-correction: applies only overrides that have a value, so a path can never be unset."""
    given = {key: text for key, text in lane.overrides.items() if text not in ("null", "None")}
    return launch(self, recipe, _with(lane, given))

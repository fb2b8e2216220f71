"""What this adapter asks of torchtitan 0.2.2 on a CPU, where it differs from 0.3.0."""

from dataclasses import replace

from contracts.stacks.kit.declining import lacks
from contracts.stacks.torchtitan.abilities import ABILITIES

BIASES = ("attention-bias", "mlp-bias", "router-bias")
GONE = frozenset({"muon", "pp", "interleaved", "outer-rates", "layer-rates", "bias-rates", "compile", *BIASES})
THERE = (
    frozenset({"ep-with-etp"}), frozenset({"tied", "pp"}),
    frozenset({"experts", "tp"}), frozenset({"muon", "tp"}), frozenset({"muon", "pp"}), frozenset({"muon", "dp"}),
)  # fmt: skip
"""What 0.3.0 lacks and 0.2.2 has, or lacks for another reason."""

ABILITIES_0_2 = replace(
    ABILITIES,
    has=ABILITIES.has - GONE | {"ep-with-etp"},
    lacks=(
        *(each for each in ABILITIES.lacks if each.features not in THERE),
        lacks("muon", "stack", "its optimizers are Adam and AdamW"),
        lacks("pp", "stack", "its Qwen3 has no function for a pipeline"),
        lacks("interleaved", "stack", "its Qwen3 has no function for a pipeline"),
        lacks("outer-rates", "stack", "its optimizers have one group of parameters"),
        lacks("layer-rates", "stack", "its optimizers have one group of parameters"),
        lacks("bias-rates", "stack", "its arguments of experts hold for all layers"),
        lacks("dp", "stack", "its DDP takes what a reduction returns, and torch's fake backend returns nothing",
              asked=frozenset({"rehearse"})),
        lacks("compile", "adapter", "not tried on this version"),
        *(lacks(each, "stack", "its linear layers have no biases") for each in BIASES),
    ),
)  # fmt: skip

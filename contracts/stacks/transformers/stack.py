"""transformers as a stack under test: what it answers, and what was done for each answer."""

import contextlib
import importlib
import os
from collections.abc import Mapping

from contracts.spec import Layout
from contracts.stacks.kit.versions import Package
from contracts.stacks.transformers.abilities import ABILITIES, VERSIONS, of_version

OWN = "built from a recipe, run by its own Trainer"
WIDE = (
    "a call in float64 is computed in float64 where transformers writes torch.float32 and its Trainer adds up losses, "
    "with its eager experts and its own operations: grouped_mm and mamba-ssm's kernels have no float64"
)
SHARED = (
    "DeepSeek-V3's shared expert built at the recipe's width, which its configuration knows only as a multiple of an "
    "expert's"
)


CHECKPOINTS = ("write_checkpoint", "latest_checkpoint", "load_checkpoint", "retire_checkpoints", "export_model")


class Transformers(Package):
    """An installed transformers, in this process.

    Raises:
        Unreachable: when transformers, or the requested version, is not installed in this interpreter.
    """

    name = "transformers"
    conventions: Mapping[str, str] = {
        "rope-angles": "float32",
        "rope-turns": "activations",
        "softmax-router": "activations",
        "gate-sum": "1e-20",
        "first-rate": "step-0",
        "warm-up-from": "min-lr",
        "validation-mean": "batches",
        "communicators": "purpose",
    }
    layouts: frozenset[Layout] = frozenset({"borrowed"})
    computes_on = frozenset({"cpu", "cuda"})
    tried, can = VERSIONS, ABILITIES
    command = "make transformers TRANSFORMERS={0}"
    of = {  # noqa: RUF012
        **dict.fromkeys(("built", "initial", "run_model", "train"), "contracts.stacks.transformers.training"),
        **dict.fromkeys(
            ("block_weights", "run_block", "run_delta_rule", "run_compiled", "allowed_breaks"),
            "contracts.stacks.transformers.blocks",
        ),
        **dict.fromkeys(CHECKPOINTS, "contracts.stacks.transformers.checkpoints"),
        "live_mesh": "contracts.stacks.transformers.process_groups",
        "samples": "contracts.stacks.transformers.data_order",
        "trace": "contracts.stacks.transformers.observed_runs",
    }
    said = {  # noqa: RUF012
        **dict.fromkeys(("built", "initial", "block_weights"), OWN),
        "live_mesh": "the meshes of a DistributedConfig",
        "samples": "the loader of its Trainer, over ids; several ranks on torch's fake process group",
        **dict.fromkeys(("run_model", "train"), f"{OWN}; in float64 substituted: {WIDE}"),
        "run_compiled": "a norm and its mixer, compiled as a whole model is",
        "allowed_breaks": "none: it lists no break",
        "run_block": f"substituted: {WIDE}; {SHARED}",
        "run_delta_rule": f"Qwen3-Next's, in its own operations; substituted: {WIDE}",
        "trace": "a script with its own Trainer, observed",
        **dict.fromkeys(CHECKPOINTS, "its own Trainer, with a state of the law in place of a model and moments"),
    }

    def __init__(self, version: str | None = None) -> None:
        super().__init__(version)
        if self.version in self.tried:
            self.abilities = of_version(self.version)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # A rank whose peers decline a case while it still imports is stopped in the middle of the import.
            for module in {*self.of.values()}:
                with contextlib.suppress(ImportError):  # of an untried version, which falls back question by question
                    importlib.import_module(module)

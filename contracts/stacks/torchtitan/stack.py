"""torchtitan as a stack under test: what it answers, and what was changed for each answer."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.spec import Layout
from contracts.stacks.kit.answering import located
from contracts.stacks.kit.versions import Package
from contracts.stacks.torchtitan import shims
from contracts.stacks.torchtitan.abilities import ABILITIES, CONVENTIONS
from contracts.stacks.torchtitan.release_0_2.abilities import ABILITIES_0_2

STEPS = ("device", "kernels", "experts", "sums", "stages", "attention", "compiled", "gate", "muon")
BLOCK = ("device", "kernels", "experts", "attention", "wide", "gate")
"""The changes for a question, by their names in `shims.SHIMS`."""
COUNTED = ("initial", "train", "messages", "rehearse", "run_model", "run_block", "run_compiled")
"""What runs a router."""
OLDER = ("built", "rehearse", "run_model", "train")
"""What 0.2.2 is asked of its other trainer; main of before March 2026 is asked for `initial` too."""
CHECKPOINTS = (
    "write_checkpoint", "write_on_ranks", "write_in_background", "latest_checkpoint", "load_checkpoint",
    "retire_checkpoints", "export_weights", "export_model",
)  # fmt: skip


class Torchtitan(Package):
    """An installed torchtitan, in this process.

    Raises:
        Unreachable: when torchtitan, or the requested version, is not installed in this interpreter.
    """

    name = "torchtitan"
    conventions: Mapping[str, str] = CONVENTIONS
    layouts: frozenset[Layout] = frozenset({"borrowed"})
    computes_on = frozenset({"cpu", "cuda"})
    tried, can = ("0.3.0",), ABILITIES
    limited = {"0.2.2": frozenset({"topology", *OLDER})}  # noqa: RUF012
    command = "make titan TITAN={0}"
    of = {  # noqa: RUF012
        **dict.fromkeys(("topology", "live_mesh"), "contracts.stacks.torchtitan.topology"),
        "built": "contracts.stacks.torchtitan.built_model",
        **dict.fromkeys(
            ("initial", "run_model", "train", "messages", "rehearse"), "contracts.stacks.torchtitan.training"
        ),
        **dict.fromkeys(
            ("block_weights", "run_block", "run_compiled", "allowed_breaks"), "contracts.stacks.torchtitan.blocks"
        ),
        **dict.fromkeys(CHECKPOINTS, "contracts.stacks.torchtitan.checkpoints"),
        "rename_weights": "contracts.stacks.torchtitan.renaming",
        "trace": "contracts.stacks.torchtitan.observed_runs",
        "rows_of": "contracts.stacks.torchtitan.blends",
    }
    said = {  # noqa: RUF012
        "topology": f"{shims.label('device')}; torch's fake process group",
        "live_mesh": shims.label("device"),
        **dict.fromkeys(("built", "block_weights"), shims.label("device")),
        **dict.fromkeys(("initial", "train", "messages"), shims.label(*STEPS)),
        "rehearse": f"{shims.label(*STEPS)}; torch's fake process group",
        "run_model": shims.label(*STEPS, "wide"),
        "run_block": shims.label(*BLOCK),
        "run_compiled": shims.label(*BLOCK, "compiled"),
        "allowed_breaks": "none: a break in one of its full graphs is an error",
        **dict.fromkeys(CHECKPOINTS, f"{shims.label('device')}; its checkpoint manager by itself"),
        "rename_weights": f"{shims.label('device')}; its state-dict adapter of DeepSeek-V3 by itself",
        "trace": f"its train.py, observed; {shims.label('device', 'kernels', 'experts', 'sums')}",
        "rows_of": "labels of its text datasets over numbered tokens, by a tokenizer that adds only a beginning",
    }

    def __init__(self, version: str | None = None) -> None:
        super().__init__(version)
        place = located("torchtitan")
        self.older = place is not None and not (place / "trainer.py").exists()  # up to February 2026 it was train.py
        if self.older:
            known = self.version in self.limited
            self.abilities = ABILITIES_0_2 if known else replace(ABILITIES_0_2, claims=False)
            self.conventions = {**CONVENTIONS, "validation-mean": "batches"}
            older = shims.label("device", "counts", "shares", "permutes", "heads", "lengths", "sums")
            said = {"built": shims.label("device"), "run_model": older, "train": older}
            self.labels = {**self.labels, **said, "rehearse": f"{older}; torch's fake process group"}
        optimizers = place / "components/optimizer.py" if place else None
        if (
            optimizers
            and optimizers.exists()
            and "class ParamGroupConfig" not in optimizers.read_text(encoding="utf-8")
        ):
            self.conventions = {**self.conventions, "undecayed": "nothing"}  # up to April 2026 it has one group
        if not {self.version} & {*self.tried, *self.limited}:
            counts = {
                question: f"{words}; {shims.label('counts', 'shares', 'heads')}"
                for question, words in self.labels.items()
            }
            self.labels = {**self.labels, **{name: counts[name] for name in COUNTED}}
        shims.without_triton()
        shims.set_device_type()

    def module_of(self, question: str) -> str:
        older = self.older and question in (*OLDER, "initial")
        return "contracts.stacks.torchtitan.release_0_2.training" if older else super().module_of(question)

"""OLMo-core 3.0 under test by rankproof: its Transformer and TransformerTrainModule, attached to its Trainer.

pip install ai2-olmo-core==3.0.0
rankproof init --probe olmo_lane:Stack
"""


import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from types import MappingProxyType

import torch
from olmo_checkpoints import Checkpoints
from olmo_training import Training, block_of, text_of
from torch import Tensor, nn

from contracts.spec import Abilities, BlockCall, BlockRun, Lack, NotOffered, Recipe, Session
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks, without
from contracts.stacks.kit.links import Link, depthwise, joined, same

LACKS: tuple[tuple[Lack, str, str], ...] = (
    ("stack", "its norms and rotations compute in float32", "float64"),
    ("stack", "a layer is attention or Mamba-2 and then an MLP or experts", "recurrent unpaired author-dp"),
    ("stack", "its MLPs are gated by SiLU", "relu2"),
    ("stack", "it has none", "changing-decay mla dsa hyper-connections parallel-ssm prediction-heads group-limited"),
    ("stack", "its microbatches have one size", "uneven-microbatches windows"),
    ("stack", "the sequences of a batch are divided evenly among ranks", "uneven-validation"),
    ("stack", "a checkpoint is loaded whatever the model was", "checkpoint-of-a-recipe"),
    ("stack", "a load wants the optimizer state of each parameter that is trained", "refrozen"),
    ("stack", "its tensor parallelism cuts sequences too", "tp-without-sp"),
    ("stack", "FP16 has no loss scale in it", "fp16"),
    ("stack", "its metric is the mean over ranks", "largest-loss"),
    ("stack", "experts and routers have no biases", "expert-bias cut-expert-bias router-bias"),
    ("device", "its experts are Triton kernels", "experts softmax sigmoid top-1 selection-bias borrowed own-axis etp "
     "shared-expert bias-rates route-scale balance-loss z-loss capacity ep ep-without-fsdp ep-with-etp etp-without-ep"),
    ("device", "documents are masked by its flash backends", "packed"),
    ("device", "it compiles on CUDA only", "compile compiled-blocks"),
    ("stack", "its Mamba-2 is cut by no axis", "mamba+tp mamba+cp"),
    ("device", "its all-to-all is torch.distributed.nn's, which on gloo wants groups from rank 0 on", "cp+tp cp+dp"),
    ("device", "its Muon is the package dion, which is on no index", "muon"),
    ("device", "FP8 needs a GPU", "fp8"),
    ("adapter", "not asked yet", "pp interleaved uneven-kv"),
)  # fmt: skip
WITHOUT: tuple[tuple[Lack, str, str], ...] = (
    ("stack", "a site has the kernel and the dtype that its configuration names: there is no table of them",
     "seams kernel_facts kernels kernel promotion precision_plan"),
    ("stack", "it plans no memory, it reports peaks", "budget fit card"),
    ("stack", "it saves where it is asked to, whatever volume that is", "checkpoint_folder"),
    ("stack", "a run removes its own checkpoints, and none of another run", "retire_checkpoints"),
    ("stack", "the last token of its rows predicts nothing", "sample"),
    ("stack", "it writes one format of names, those of its modules", "rename_weights"),
    ("stack", "it measures no fabric before a run", "fabric_pass fabric_reasons"),
    ("stack", "it logs metrics, and writes no receipt", "run_receipts"),
    ("stack", "its layers sum by DTensor, which is torch's", "reduced"),
    ("device", "it compiles on CUDA only",
     "run_compiled pass_compiled compile_cold compile_under allowed_breaks probe_compiler pads_rows wrapping"),
    ("device", "its GatedDeltaNet is flash-linear-attention's Triton kernels", "run_delta_rule"),
)  # fmt: skip


class Stack(Adapter, Checkpoints):
    name, version, autocasts = "OLMo-core", version("ai2-olmo-core"), True
    chunk = 128  # tokens, in the scan of the block that is asked
    conventions = MappingProxyType({"undecayed": "embeddings", "logits-dtype": "activations"})
    abilities = Abilities(
        has=frozenset((
            "attention", "mamba", "narrow-scan", "mlp", "gqa", "qk-norm", "swiglu", "tied", "float32", "bf16", "adamw",
            "recompute", "cosine", "linear", "constant", "WSD", "microbatches", "changing-batches", "checkpoint", "dp",
            "own-data", "validation", "dropout", "attention-bias", "mlp-bias", "frozen", "outer-rates", "layer-rates",
            "fsdp", "replicas", "tp", "sp", "tp-without-fsdp", "uneven-vocab", "cp",
        )),
        lacks=(*(lacks(each.replace("+", " "), kind, reason) for kind, reason, all_ in LACKS for each in all_.split()),
               *(without(questions, kind, reason) for kind, reason, questions in WITHOUT),
               lacks("capacity-by-gate", "stack", "full experts drop by position", asked=frozenset())),
    )  # fmt: skip
    outside = MappingProxyType({"embedding.weight": "embeddings.weight", "norm.weight": "lm_head.norm.weight",
                                "head.weight": "lm_head.w_out.weight"})  # fmt: skip

    def layer(self, number: int) -> str:
        return f"blocks.{number // 2}."

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        if letter == "E":
            yield same("feed_forward_norm.weight", "norm.weight")
            ends = ("weight", "bias") if "mlp" in recipe.biases else ("weight",)
            yield from (same(f"feed_forward.{n}.{end}", f"mixer.{n}.{end}") for n in ("w1", "w2", "w3") for end in ends)
            return
        yield same("attention_norm.weight", "norm.weight")
        if letter == "M":
            yield from scan_links(recipe)
            return
        ends = ("weight", "bias") if "attention" in recipe.biases else ("weight",)
        for theirs, ours in {"w_q": "wq", "w_k": "wk", "w_v": "wv", "w_out": "wo"}.items():
            yield from (same(f"attention.{theirs}.{end}", f"mixer.{ours}.{end}") for end in ends)
        for name in ("q_norm", "k_norm") if recipe.qk_norm else ():
            yield same(f"attention.{name}.weight", f"mixer.{name}.weight")

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        return block_of(recipe, letter, self.chunk).build(d_model=recipe.hidden, block_idx=0, n_layers=1,
                                      init_device=str(torch.get_default_device()))  # fmt: skip

    def run_block(self, call: BlockCall) -> BlockRun:
        if call.state:
            raise NotOffered("OLMo-core: its scan begins with no state, and returns none", "stack")
        self.chunk = call.chunk or 128
        return super().run_block(replace(call, chunk=None))

    def branch(self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor) -> Tensor:
        if letter == "E":
            return layer.feed_forward(layer.feed_forward_norm(x_BTD))
        if (documents_BT != documents_BT[:, :1]).any():
            kind = "stack" if letter == "M" else "device"
            raise NotOffered("OLMo-core: packed: documents are masked by its flash backends, and not in its scan", kind)
        return layer.attention(layer.attention_norm(x_BTD))

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        with torch.device("cpu"):
            return Training(session, links)

    def samples(self, recipe: Recipe, step: int, rank: int, dp: int) -> tuple[int, ...]:
        if dp < 1 or recipe.batch.total % dp or not 0 <= rank < dp or step < 1:
            raise NotOffered("OLMo-core: its Trainer counts steps and ranks itself, and shares a batch evenly", "stack")
        with tempfile.TemporaryDirectory() as folder:
            loader = text_of(recipe, folder, rank, dp, recipe.batch.total)
            if len(loader.dataset) % recipe.batch.total:
                raise NotOffered("OLMo-core: a step of its loader ends with the epoch", "stack")
            epoch, loader.batches_processed = divmod(step - 1, loader.total_batches)
            loader.reshuffle(epoch + 1, in_memory=True)
            return tuple(int(each) for each in next(iter(loader))["index"])


def scan_links(recipe: Recipe) -> Iterable[Link]:
    inner, state = recipe.mamba.heads * recipe.mamba.head_dim, recipe.mamba.groups * recipe.mamba.state
    names, sizes = ("x", "b", "c"), (inner, state, state)
    projected = [f"mixer.{name}.weight" for name in ("wz", *(f"w{each}" for each in names), "wdt")]
    yield joined("attention.in_proj.weight", projected, (inner, *sizes, recipe.mamba.heads))
    yield depthwise("attention.conv1d.weight", [f"mixer.conv_{each}.weight" for each in names], sizes)
    yield joined("attention.conv1d.bias", [f"mixer.conv_{each}.bias" for each in names], sizes)
    yield from (same(f"attention.{name}", f"mixer.{name}") for name in ("A_log", "D", "dt_bias"))
    yield same("attention.norm.weight", "mixer.out_norm.weight")
    yield same("attention.out_proj.weight", "mixer.wo.weight")

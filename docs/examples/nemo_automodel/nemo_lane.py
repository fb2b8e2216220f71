"""NeMo AutoModel 0.7 under test by rankproof: its recipe of next-token training, with its Ling, Qwen3 and Llama.

On a CPU: pip install torch==2.13.0 transformers==5.18.0 torchdata 'torchao>=0.16' 'datasets>=4' pyyaml mistral-common
          pip install --no-deps nemo-automodel==0.7.0 megatron-fsdp==0.5.0
rankproof init --probe nemo_lane:Stack
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
from nemo_automodel.components.datasets.utils import _indexed_mask_to_4d_block_causal
from nemo_automodel.components.distributed.mesh_utils import get_flat_mesh
from nemo_automodel.components.models.gpt_oss.rope_utils import position_ids_to_freqs_cis
from nemo_automodel.components.models.ling_v2.model import Block
from nemo_automodel.components.moe.megatron.moe_utils import MoEAuxLossAutoScaler
from nemo_automodel.recipes._dist_utils import create_distributed_setup_from_config
from nemo_checkpoints import Checkpoints
from nemo_training import Training, model_of
from torch import Tensor, nn

from contracts.spec import Abilities, Degrees, Lack, Layout, LiveMesh, NotOffered, Recipe, Session, refuse
from contracts.stacks.kit import worlds
from contracts.stacks.kit.adapter import Adapter, Steps
from contracts.stacks.kit.declining import lacks, without
from contracts.stacks.kit.links import Link, joined, same

LACKS: tuple[tuple[Lack, str, str], ...] = (
    ("stack", "its rotations compute in float32", "float64"),
    ("stack", "a layer is attention and then an MLP or experts", "unpaired recurrent parallel-ssm"),
    ("stack", "the MLP of its layer is gated by SiLU", "relu2+mlp"),
    ("stack", "mixed precision is FSDP2's, which it leaves out in one process: there all is bfloat16", "bf16"),
    ("stack", "it has none", "hyper-connections z-loss capacity fp16 dropout largest-loss bias-rates"),
    ("stack", "a batch is divided evenly among ranks", "uneven-validation"),
    ("stack", "a checkpoint of another recipe is loaded with a warning", "checkpoint-of-a-recipe"),
    ("stack", "DTensors of experts lie on EP's mesh, which wants FSDP", "ep-without-fsdp own-axis"),
    ("stack", "its models with experts have no tensor parallelism", "tp+experts"),
    ("stack", "its tensor parallelism divides KV heads", "uneven-kv"),
    ("stack", "its DDP takes no other axis, and its FSDP2 refuses replicas without shards", "tp-without-fsdp"),
    ("stack", "experts are cut by EP only", "etp ep-with-etp etp-without-ep cut-expert-bias"),
    ("device", "its Mamba-2 is mamba_ssm's kernels", "mamba narrow-scan"),
    ("device", "its sparse attention is TileLang's and cuDNN's", "dsa"),
    ("device", "Ling's documents are packed for Transformer Engine, FlashAttention 4 or magi", "packed+experts"),
    ("device", "FP8 needs a GPU", "fp8"),
    ("device", "its Muon is the package dion, which is on no index", "muon"),
    ("stack", "Ling's layer raises when recomputed (nemo_automodel_ling_is_not_recomputed.py)", "recompute+experts"),
    ("stack", "Ling's embedding and output projection are two tensors", "tied+experts"),
    ("stack", "Qwen3's MLP has no biases", "mlp-bias+qk-norm"),
    ("adapter", "not asked yet", "mla prediction-heads windows refrozen cp "
     "pp interleaved compile compiled-blocks author-dp"),
)  # fmt: skip
WITHOUT: tuple[tuple[Lack, str, str], ...] = (
    ("stack", "a site has the kernel that its BackendConfig names: there is no table of them",
     "seams kernel_facts kernels kernel promotion precision_plan"),
    ("stack", "it plans no memory, it reports peaks", "budget fit card"),
    ("stack", "it saves where it is asked to, whatever volume that is", "checkpoint_folder"),
    ("stack", "a run removes its own checkpoints, and none of another run", "retire_checkpoints"),
    ("stack", "it measures no fabric before a run", "fabric_pass fabric_reasons"),
    ("stack", "it logs metrics, and writes no receipt", "run_receipts"),
    ("stack", "its layers sum by DTensor, which is torch's", "reduced"),
    ("stack", "the rows are a data set that its user gives", "sample"),
    ("device", "torch stages an asynchronous save through an accelerator",
     "write_in_background write_in_background_on_ranks"),
    ("device", "its delta rule is flash-linear-attention's Triton kernels", "run_delta_rule"),
)  # fmt: skip


class Stack(Adapter, Checkpoints):
    name, version, autocasts = "NeMo AutoModel", version("nemo-automodel"), False
    layouts = frozenset({"borrowed"})
    labels = dict.fromkeys(("built", "initial", "run_model", "train"),
                           "its setup asks CUDA for a device: a CPU stands in its place")
    conventions = MappingProxyType({
        "undecayed": "nothing", "first-rate": "step-0", "warm-up-without-decay": "refused", "rope-angles": "float32",
        "gate-sum": "1e-20", "balance-over": "microbatch", "logits-dtype": "activations", "communicators": "purpose",
        "rope-turns": "activations", "softmax-router": "bfloat16-weight", "sigmoid-router": "bfloat16-weight",
    })  # fmt: skip
    abilities = Abilities(
        has=frozenset((
            "attention", "mlp", "experts", "gqa", "qk-norm", "swiglu", "relu2", "softmax", "sigmoid", "top-1",
            "selection-bias", "group-limited", "shared-expert", "route-scale", "balance-loss", "expert-bias",
            "router-bias", "attention-bias", "float32", "adamw", "cosine", "linear", "constant", "WSD",
            "microbatches", "uneven-microbatches", "validation", "changing-batches", "own-data", "frozen",
            "outer-rates", "layer-rates", "checkpoint", "packed", "recompute", "tied", "mlp-bias", "tp", "sp",
            "changing-decay", "tp-without-sp", "uneven-vocab", "dp", "fsdp", "replicas", "ep", "borrowed",
        )),
        lacks=(*(lacks(each.replace("+", " "), kind, reason) for kind, reason, all_ in LACKS for each in all_.split()),
               *(without(questions, kind, reason) for kind, reason, questions in WITHOUT)),
    )  # fmt: skip
    outside = MappingProxyType({"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
                                "head.weight": "lm_head.weight"})  # fmt: skip

    def layer(self, number: int) -> str:
        return f"model.layers.{number // 2}."

    def links(self, letter: str, recipe: Recipe) -> Iterable[Link]:
        moe = recipe.moe
        if letter == "A":
            yield same("input_layernorm.weight", "norm.weight")
            ends = ("weight", "bias") if "attention" in recipe.biases else ("weight",)
            yield from (same(f"self_attn.{n}_proj.{end}", f"mixer.w{n}.{end}") for n in "qkvo" for end in ends)
            yield from (same(f"self_attn.{n}_norm.weight", f"mixer.{n}_norm.weight") for n in "qk" if recipe.qk_norm)
            return
        yield same("post_attention_layernorm.weight", "norm.weight")
        gated = ("w1", "w3") if recipe.activation == "swiglu" else ("w1",)
        names = dict(zip((*gated, "w2"), ("gate_proj", "up_proj", "down_proj")[-1 - len(gated) :], strict=True))
        if moe is None:
            ends = ("weight", "bias") if "mlp" in recipe.biases else ("weight",)
            yield from (same(f"mlp.{t}.{end}", f"mixer.{o}.{end}") for o, t in names.items() for end in ends)
            return
        yield same("mlp.gate.weight", "mixer.router.weight")
        if "router" in recipe.biases:
            yield same("mlp.gate.bias", "mixer.router.logit_bias")
        if moe.selection_bias:
            yield same("mlp.gate.e_score_correction_bias", "mixer.router.bias")
        yield turned("mlp.experts.gate_and_up_projs", [f"mixer.experts.{n}" for n in gated], moe.expert_hidden)
        yield turned("mlp.experts.down_projs", ["mixer.experts.w2"], recipe.hidden)
        if "experts" in recipe.biases:
            ours = [f"mixer.experts.b{n[1]}" for n in gated]
            yield joined("mlp.experts.gate_up_proj_bias", ours, [moe.expert_hidden] * len(ours), dim=1)
            yield same("mlp.experts.down_proj_bias", "mixer.experts.b2")
        if moe.shared_hidden:
            yield from (same(f"mlp.shared_experts.{n}.weight", f"mixer.shared.{o}.weight") for o, n in names.items())

    def block(self, letter: str, recipe: Recipe) -> nn.Module:
        model = model_of(recipe if letter == "A" else replace(recipe, qk_norm=False)).model  # Qwen3's MLP has no biases
        layer = model.get_submodule("layers.0")
        layer.rotary_emb = model.rotary_emb
        return layer

    def branch(
        self, layer: nn.Module, letter: str, x_BTD: Tensor, documents_BT: Tensor
    ) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        if letter == "E":
            said: dict[str, Tensor] = {}
            if (gate := getattr(layer.mlp, "gate", None)) is not None:
                gate._track_load_balance = True
                gate.register_forward_hook(lambda *told: said.update(
                    {"gates": told[2][0], "experts": told[2][1]} | ({} if told[2][2] is None else {"aux": told[2][2]})))
                MoEAuxLossAutoScaler.main_loss_backward_scale = torch.tensor(1.0)
            try:
                h_BTD = layer.post_attention_layernorm(x_BTD)
                y_BTD = layer._mlp(h_BTD, None) if gate is not None else layer.mlp(h_BTD)
            except IndexError as error:
                raise refuse("x", tuple(x_BTD.shape), f"its experts: {error}", "give it a token") from None
            return y_BTD, said if gate is None else said | {"counts": gate._last_expert_load}
        h_BTD, positions_BT = layer.input_layernorm(x_BTD), torch.arange(x_BTD.shape[1]).expand(x_BTD.shape[:2])
        packed = bool((documents_BT != documents_BT[:, :1]).any())
        if not isinstance(layer, Block):
            mask = _indexed_mask_to_4d_block_causal(documents_BT + 1) if packed else None
            turned = layer.rotary_emb(h_BTD, positions_BT)
            return layer.self_attn(hidden_states=h_BTD, position_embeddings=turned, attention_mask=mask)[0]
        if packed:
            raise NotOffered("NeMo AutoModel: documents are packed for Transformer Engine, FA4 or magi", "device")
        freqs = position_ids_to_freqs_cis(layer.rotary_emb, positions_BT, for_fused_rope=False)
        return layer.self_attn(h_BTD, freqs_cis=freqs)

    def live_mesh(self, degrees: Degrees, world: int, layout: Layout, contribution: int) -> LiveMesh:
        """The meshes of its setup. Without EP there is none of experts."""
        if degrees.ep > 1 and layout != "borrowed":
            raise NotOffered("NeMo AutoModel: EP has no axis of its own", "stack")

        def build() -> dict[str, Any]:
            sizes = {f"{axis}_size": getattr(degrees, axis) for axis in ("tp", "cp", "pp", "ep")}
            stages = {} if degrees.pp > 1 else None
            made = create_distributed_setup_from_config(world_size=world, pipeline=stages, **sizes).mesh_context
            dense, sparse = made.device_mesh, made.moe_mesh
            experts = {"ep": None} if sparse is None else {"ep": sparse["ep"], "edp": sparse["ep_shard"]}
            return experts | {axis: get_flat_mesh(dense, axis) for axis in ("pp", "dp", "cp", "tp", "dp_cp")}

        return worlds.live_mesh(build, contribution)

    def run(self, session: Session, links: Sequence[Link]) -> Steps:
        with torch.device("cpu"):
            return Training(session, links)


def turned(theirs: str, ours: Sequence[str], width: int) -> Link:
    """Matrices of all experts, (in, out) there, those of one input side by side."""
    flat = joined(theirs, ours, [width] * len(ours), dim=2)
    return Link(theirs=theirs, ours=flat.ours, sizes=flat.sizes,
                pack=lambda given: flat.pack([each.mT for each in given]),
                unpack=lambda held: [each.mT for each in flat.unpack(held)])  # fmt: skip

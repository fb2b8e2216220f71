"""One block of Megatron-Core: the norm and the attention or the experts of one of its layers, on one rank."""

import contextlib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import numerics
from contracts.spec import BlockCall, BlockRun, Degrees, Lack, Mode, NotOffered, Recipe, Shape, refuse
from contracts.spec import pattern as patterns
from contracts.spec.delta_rule import DeltaCall, DeltaRun
from contracts.stacks.kit import delta_rule
from contracts.stacks.megatron.block_base import THEIRS, Block, gradient
from contracts.stacks.megatron.losses import clear_losses, noted_losses
from contracts.stacks.megatron.mamba_block import MambaBlock, declined
from contracts.stacks.megatron.mamba_kernels import KERNELS
from contracts.stacks.megatron.model import Plan, layer_spec, mask_of, planned
from contracts.stacks.megatron.process_groups import parallel
from contracts.stacks.megatron.shims import mcore, running_on

ONE = Degrees()
DELTA_RULE = "torch_chunk_gated_delta_rule"


def plan_of(recipe: Recipe, layer: int, dtype: torch.dtype) -> Plan:
    """The plan of one block: only its letter.

    Raises:
        NotOffered: for a letter or a feature that Megatron does not have, or not on a CPU.
    """
    parsed = patterns.parse(recipe.pattern, recipe.depth)
    letter = parsed.letters[layer]
    sparse = recipe.dsa is not None and letter == "A"
    if letter not in "AEM" or sparse:
        lack: Lack = "device" if letter in "AEM" else "stack"
        raise NotOffered(f"Megatron-Core's layers have no {'sparse ' * sparse}{letter} block on a CPU", lack)
    alone = replace(recipe, pattern=letter, depth=1, dsa=None, mtp=None, mhc=None, fp8=None, dtype="fp32")
    return planned(alone, ONE, dtype, families="AEM")


def _block(plan: Plan, device: str = "cpu") -> Block:
    return (MambaBlock if plan.letters == "M" else TransformerBlock)(plan, device)


@contextlib.contextmanager
def _hosted(plan: Plan, mode: Mode, device: str = "cpu") -> Iterator[None]:
    """The context of a block: Megatron on a device, with process groups of one rank, and the block's own shims."""
    if plan.letters == "M":
        declined(mode)
    kernels = KERNELS if plan.letters == "M" else ()
    with running_on(device, wide=plan.dtype is torch.float64, besides=kernels), parallel(ONE, 1, device=device):
        yield


def run_block(call: BlockCall) -> BlockRun:
    """A block forward, and backward where the call has an upstream gradient."""
    if call.kernels:
        raise NotOffered("Megatron-Core is asked with the operations of its local specification", "device")
    if call.recipe.fp8 is not None:
        raise NotOffered("Megatron-Core: FP8 is Transformer Engine's, and that runs on GPUs", "device")
    dtype = numerics.tensor(call.x).dtype
    if call.router not in (None, call.x.dtype):
        raise NotOffered("Megatron-Core: a router's product is in float32, in float64 or as the activations", "stack")
    plan = replace(plan_of(call.recipe, call.layer, dtype), narrow=call.router is not None)
    with _hosted(plan, call.mode, call.device):
        block = _block(plan, call.device)
        block.load(numerics.tensors(call.weights))
        return block.run(call)


def run_delta_rule(call: DeltaCall) -> DeltaRun:
    """The rule of its gated delta net in deterministic mode, of torch's operations."""
    module = _delta_rules()
    if call.unit_keys and module.l2norm is None:
        raise NotOffered("its keys are normed by flash-linear-attention, which needs a GPU", "device")
    rule = getattr(module, DELTA_RULE)
    with running_on(wide=call.tensors["v"].dtype == "float64"):
        return delta_rule.answer(call, rule)


def _delta_rules() -> Any:
    """The module that has it: a file from January 2026 to 0.18, a package with `common` since 0.19."""
    if not any(each.name == "linear_attention_freq" for each in fields(mcore("transformer").TransformerConfig)):
        raise NotOffered("Megatron-Core: up to January 2026 it has no gated delta net", "stack")
    module = importlib.import_module("megatron.core.ssm.gated_delta_net")
    return module if hasattr(module, DELTA_RULE) else importlib.import_module(f"{module.__name__}.common")


def block_weights(recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
    """Names, shapes and dtypes of a block's parameters and buffers."""
    plan = plan_of(recipe, layer, torch.float32)
    if plan.letters == "M" and recipe.dtype == "bf16":
        plan = replace(plan, dtype=torch.bfloat16)
    with _hosted(plan, mode):
        block = _block(plan)
        held = block.ours({name: each.detach() for name, each in block.tensors().items()})
    return {
        name: Shape(dtype=numerics.array(each).dtype, shape=tuple(each.shape)) for name, each in sorted(held.items())
    }


class TransformerBlock(Block):
    """A transformer layer without one of its halves."""

    def __init__(self, plan: Plan, device: str = "cpu") -> None:
        super().__init__(plan, device)
        self.routed: list[tuple[Tensor, Tensor]] = []

    def build(self, config: Any) -> Any:
        config.calculate_per_token_loss = False  # the block's objective is not a mean over labels
        spec = layer_spec(self.plan, self.plan.letters)
        return mcore("transformer.spec_utils").build_module(spec, config=config, layer_number=1)

    def tensors(self) -> dict[str, Tensor]:
        named = {THEIRS + name: each for name, each in (*self.layer.named_parameters(), *self.layer.named_buffers())}
        return {name: each for name, each in named.items() if name in self.table}

    def run(self, call: BlockCall) -> BlockRun:
        x_TBD = numerics.tensor(call.x, strided=call.strided).to(call.device).transpose(0, 1)
        x_TBD = (x_TBD if call.strided else x_TBD.contiguous()).requires_grad_()
        with self._watched_router():
            y_TBD = self._forward(x_TBD, call)
            dy_BTD = None if call.dy is None else numerics.tensor(call.dy, strided=call.strided).to(call.device)
            gradients = {} if dy_BTD is None else self._backward(x_TBD, y_TBD, dy_BTD)
        return BlockRun(
            y=numerics.array(y_TBD.transpose(0, 1)),
            gradients=numerics.arrays(gradients),
            losses=numerics.arrays({name: each.sum() for name, each in noted_losses().items()}),
            seen=numerics.arrays(self._seen(tuple(x_TBD.shape), call.padding is not None and _biased(call))),
            strided=not x_TBD.is_contiguous(),
        )

    def _forward(self, x_TBD: Tensor, call: BlockCall) -> Tensor:
        if not x_TBD.numel():
            raise NotOffered("Megatron-Core's layers reshape to a size that no token leaves open, and raise", "stack")
        clear_losses()
        scaler = mcore("transformer.moe.moe_utils").MoEAuxLossAutoScaler
        scaler.set_loss_scale(torch.ones(1, dtype=x_TBD.dtype, device=call.device))
        layer = self.layer
        if self.plan.letters == "E":
            padding_BT = None if call.padding is None else numerics.tensor(call.padding).to(call.device)
            told = {} if padding_BT is None else {"padding_mask": _padding(layer.mlp, padding_BT)}
            try:
                if call.documents is not None and hasattr(mcore("utils"), "flatten_batch_for_packed_sequences"):
                    return self._packed(x_TBD, numerics.tensor(call.documents).to(call.device), **told)
                out: tuple[Tensor, Tensor | None] = layer.mlp(layer.pre_mlp_layernorm(x_TBD), **told)
            except RuntimeError as error:
                if told:
                    raise refuse("padding", "given", f"raises {error}", "give none") from None
                if "experts" in call.recipe.biases:
                    raise refuse("biases", call.recipe.biases, f"raises {error}", "cut the experts by ep") from None
                raise
            return self._added(layer.mlp_bda, out)
        shape_BT = (x_TBD.shape[1], x_TBD.shape[0])
        documents_BT = torch.zeros(shape_BT) if call.documents is None else numerics.tensor(call.documents)
        mask = mask_of(documents_BT.to(call.device))
        out = layer.self_attention(
            layer.input_layernorm(x_TBD), attention_mask=mask, rotary_pos_emb=self._rope(shape_BT[1])
        )
        return self._added(layer.self_attn_bda, out)

    def _added(self, bda: Any, out: tuple[Tensor, Tensor | None]) -> Tensor:
        """Output and bias, which a layer adds where it adds the residual: to zeros here."""
        added: Tensor = bda(self.layer.training, False)(out, torch.zeros_like(out[0]), 0.0)
        return added

    def _packed(self, x_TBD: Tensor, documents_BT: Tensor, **told: Tensor) -> Tensor:
        """The layer on packed rows, as its pretraining scripts have them: those of a microbatch one after the other."""
        module = mcore("packed_seq_params").PackedSeqParams
        rows, length = documents_BT.shape
        lengths = [torch.unique_consecutive(each, return_counts=True)[1] for each in documents_BT]
        most = max(map(len, lengths))
        ends = [torch.nn.functional.pad(each.cumsum(0), (1, 0)) for each in lengths]
        ends_BN = torch.stack([torch.nn.functional.pad(each, (0, most + 1 - len(each)), value=length) for each in ends])
        lengths_B = documents_BT.new_full((rows,), length)
        batch = {"tokens": documents_BT, "cu_seqlens": ends_BN.int(), "max_seqlen": lengths_B}
        flat = mcore("utils").flatten_batch_for_packed_sequences(batch)
        given: dict[str, Any] = {"qkv_format": "thd", "tokens_per_sample": length}
        given |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), flat["cu_seqlens"].squeeze(0))
        given |= dict.fromkeys(("max_seqlen_q", "max_seqlen_kv"), int(flat["max_seqlen"]))
        params = module(**{name: each for name, each in given.items() if name in module.__dataclass_fields__})
        x_N1D = x_TBD.transpose(0, 1).reshape(rows * length, 1, -1)
        masks = {name: each.reshape(1, -1) for name, each in told.items()}
        out, _ = self.layer(x_N1D, attention_mask=None, packed_seq_params=params, **masks)
        branch: Tensor = (out - x_N1D).view(rows, length, -1).transpose(0, 1)
        return branch

    def _rope(self, length: int) -> Any:
        """Angles from position 0 of the row. They may ignore that a document starts at 0: scores depend on differences
        of positions only, and other documents are masked."""
        recipe = self.plan.recipe
        if recipe.mla is not None:
            return None
        made = mcore("models.common.embeddings.rotary_pos_embedding").RotaryEmbedding(
            kv_channels=recipe.head_dim, rotary_percent=1.0, rotary_base=recipe.rope_theta, use_cpu_initialization=True
        )
        return made(length)

    def _backward(self, x_TBD: Tensor, y_TBD: Tensor, dy_BTD: Tensor) -> dict[str, Tensor]:
        (y_TBD * dy_BTD.transpose(0, 1)).sum().backward()  # type: ignore[no-untyped-call]
        held = {name: each for name, each in self.tensors().items() if each.requires_grad}
        found = self.ours({name: gradient(each) for name, each in held.items()})
        return found | {"x": gradient(x_TBD).transpose(0, 1)}

    @contextlib.contextmanager
    def _watched_router(self) -> Iterator[None]:
        """Records what the router chose, before a capacity drops assignments."""
        router = mcore("transformer.moe.router")
        real = router.topk_routing_with_score_function

        def watched(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            self.routed.append(found)
            return found

        router.topk_routing_with_score_function = watched
        final: list[tuple[Tensor, Tensor]] = []
        hooks = []
        if hasattr(self.layer.mlp, "router"):
            hooks = [self.layer.mlp.router.register_forward_hook(lambda *told: final.append(told[2]))]
        try:
            yield
        finally:
            router.topk_routing_with_score_function = real
            for hook in hooks:
                hook.remove()
            self.routed += final

    def _seen(self, shape: tuple[int, ...], padded: bool) -> dict[str, Tensor]:
        """The experts of each token by descending gate, and the assignments of each expert."""
        moe = self.plan.recipe.moe
        if moe is None or self.plan.letters != "E":
            return {}
        (probs, asked), (_, kept) = self.routed[0], self.routed[-1]
        length, batch, _ = shape

        def of_tokens(each: Tensor) -> Tensor:
            return each.detach().reshape(length, batch, moe.experts).transpose(0, 1)

        weighed = torch.where(of_tokens(asked).bool(), of_tokens(probs), torch.full((), -1.0, dtype=probs.dtype))
        gates_BTK, experts_BTK = weighed.topk(moe.top_k)
        found = {"experts": experts_BTK, "gates": gates_BTK, "counts": of_tokens(asked).sum((0, 1)).long()}
        if padded:  # what its bias moves by
            found["counts"] = self.layer.mlp.router.local_tokens_per_expert.long()
        return found | {"dropped": ~of_tokens(kept).bool().gather(-1, experts_BTK)}


def _biased(call: BlockCall) -> bool:
    return call.recipe.moe is not None and call.recipe.moe.selection_bias


def _padding(layer: Any, padding_BT: Tensor) -> Tensor:
    """The mask of an MoE layer; earlier versions have none."""
    if "padding_mask" not in inspect.signature(layer.forward).parameters:
        raise NotOffered("Megatron-Core: the layer is given no padding in this version", "stack")
    return padding_BT

"""One block of a transformers model: the norm and the mixer of one of its layers, in one process.

Modules are transformers' own and get the tensors of the question. With bfloat16 activations they run under autocast
over float32 parameters, as in its Trainer with `bf16=True`.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from contracts.instruments import graphs, numerics
from contracts.spec import AllowedBreak, Backend, BlockCall, BlockRun, CompiledRuns, Execution, Mode, Recipe, Shape
from contracts.spec.delta_rule import DeltaCall, DeltaRun
from contracts.stacks.kit import delta_rule
from contracts.stacks.kit.exact_kernels import exact_kernels
from contracts.stacks.kit.links import fitting, to_canonical, to_theirs
from contracts.stacks.kit.runs import gradients_of
from contracts.stacks.kit.versions import fitted
from contracts.stacks.transformers import releases, shims, weight_mapping
from contracts.stacks.transformers.configuration import (
    BAMBA,
    CONV_WIDTH,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    FALCON_H1,
    GRANITE,
    NEMOTRON_H,
    Kind,
    block_of,
    decline,
    places,
)
from contracts.stacks.transformers.weight_mapping import has_lists_of_experts

STATES = ("conv_x", "conv_b", "conv_c")


def block_weights(recipe: Recipe, layer: int, mode: Mode) -> Mapping[str, Shape]:
    """Names and shapes of a block's parameters and buffers; transformers stores them in float32 here."""
    kind, letter, one = block_of(recipe, layer, mode)
    with shims.quiet():
        held = _Block(kind, letter, one, kind.config(one)).held()
    return {
        name: Shape(dtype="float32", shape=tuple(each.shape))
        for name, each in sorted(to_canonical(held, weight_mapping.block(kind, letter, one)).items())
    }


def run_block(call: BlockCall) -> BlockRun:
    """A block forward, and backward where the call has an upstream gradient."""
    kind, letter, one = block_of(call.recipe, call.layer, call.mode)
    x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device)
    declined(call, letter, x_BTD)
    config = kind.config(one)
    wide = x_BTD.dtype is torch.float64
    config._experts_implementation = "eager" if wide else "grouped_mm"
    if call.chunk is not None:
        config.chunk_size = call.chunk
    with contextlib.ExitStack() as kept:
        own = (shims.own_operations(kind.modeling), shims.Wide()) if wide else ()
        for each in (shims.quiet(), *own, _mixed(x_BTD), exact_kernels(call.device)):
            kept.enter_context(each)
        block = _Block(kind, letter, one, config)
        return block.run(call, x_BTD.requires_grad_(call.dy is not None))


def _mixed(x_BTD: Tensor) -> contextlib.AbstractContextManager[Any]:
    """What its Trainer computes in with `bf16=True`."""
    half = x_BTD.dtype is torch.bfloat16
    return torch.autocast(x_BTD.device.type, torch.bfloat16) if half else contextlib.nullcontext()


def declined(call: BlockCall, letter: str, x_BTD: Tensor) -> None:
    """Decline a call that transformers cannot answer, or not on this device.

    Raises:
        NotOffered: with the reason.
    """
    scan = letter == "M" or (letter == "A" and call.recipe.parallel_ssm is not None)
    decline({
        "adapter": {
            "it is asked with its own operations": bool(call.kernels),
            "a router's product is asked as its model has it": call.router is not None,
        },
        "stack": {
            "its layers are given no padding; its balance loss is, over all layers": call.padding is not None,
            "its decoding step, one token after a state, has no gradient": scan and x_BTD.shape[1] == 1
            and call.state and call.dy is not None,
        },
        "device": {
            "without mamba-ssm's kernels it refuses packed documents in a scan": scan and call.documents is not None,
            "its Trainer has no float16 on a CPU": x_BTD.dtype is torch.float16,
        },
    })  # fmt: skip


def run_delta_rule(call: DeltaCall) -> DeltaRun:
    """The rule of Qwen3-Next in its own operations, which it takes where there are no kernels."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    with shims.Wide() if call.tensors["v"].dtype == "float64" else contextlib.nullcontext():
        return delta_rule.answer(call, qwen.torch_chunk_gated_delta_rule)


def run_compiled(calls: tuple[BlockCall, ...], backend: Backend) -> CompiledRuns:
    """Calls of one block, whose norm and mixer its compiler takes as it takes a whole model: with breaks."""
    first = calls[0]
    kind, letter, one = block_of(first.recipe, first.layer, first.mode)
    runs, seen = [], []
    with graphs.counting(backend) as counter, shims.quiet():
        config = kind.config(one)
        config._experts_implementation = "grouped_mm"  # what its models choose where nobody asks for another
        block, through = _Block(kind, letter, one, config), torch.compile(_through, backend=counter)
        for call in calls:
            x_BTD = numerics.tensor(call.x, strided=call.strided).to(call.device)
            declined(call, letter, x_BTD)
            with _mixed(x_BTD), exact_kernels(call.device):
                runs.append(block.run(call, x_BTD.requires_grad_(call.dy is not None), through))
            seen.append(counter.seen())
    return CompiledRuns(runs=tuple(runs), graphs=tuple(seen))


def allowed_breaks(recipe: Recipe, execution: Execution) -> tuple[AllowedBreak, ...]:
    """None: it lists no break."""
    return ()


def _through(norm: Any, mixer: Any, x_BTD: Tensor, **given: Any) -> Any:
    return mixer(norm(x_BTD), **given)


def _first(told: Any) -> Tensor:
    """What experts give; up to 4.57 some give their router's logits beside it, which their layer drops."""
    first: Tensor = told[0] if isinstance(told, tuple) else told
    return first


class _ReachedError(Exception):
    """A layer was run as far as it was asked for."""


class _Block:
    """Half of a decoder layer: a norm and what its layer calls after it."""

    def __init__(self, kind: Kind, letter: str, recipe: Recipe, config: Any) -> None:
        self.kind, self.letter, self.recipe, self.config = kind, letter, recipe, config
        self.links = weight_mapping.block(kind, letter, recipe)
        with torch.device("meta"), fitted(f"a layer of {kind.name}"):
            told = {"layer_type": "mamba"} if kind is BAMBA else {}
            self.layer = kind.part("Block" if kind is NEMOTRON_H else "DecoderLayer")(config, 0, **told)
            if kind is DEEPSEEK_V3 and letter == "E" and recipe.moe:
                width = recipe.moe.shared_hidden
                self.layer.mlp.shared_experts = kind.part("MLP")(config, intermediate_size=width)
        with fitted(f"the names of {kind.name}"):
            fitting(self.links, self.layer.state_dict())
        self.norm, _, _ = self.links[0].theirs.rpartition(".")
        scan: Any = getattr(self.layer, "mamba" if kind in (BAMBA, FALCON_H1) else "mixer", None)
        if kind is FALCON_H1:  # its model gives a layer this buffer, of factors that are 1 here
            scan.register_buffer("mup_vector", releases.found(kind.modeling, "compute_mup_vector")(config), False)
        self.scan = scan
        self.own_cache = releases.found(kind.modeling, "HybridMambaAttentionDynamicCache")  # up to 4.57
        self.seen: dict[str, Any] = {}
        self.watch()

    def held(self) -> dict[str, Tensor]:
        names = {link.theirs for link in self.links}
        return {name: each for name, each in self.layer.state_dict().items() if name in names}

    def run(self, call: BlockCall, x_BTD: Tensor, through: Callable[..., Any] | None = None) -> BlockRun:
        """A call of it. `through` calls its norm and then its mixer; compiled, where that is asked."""
        self.through, self.seen = through or _through, {}
        self.put(numerics.tensors(call.weights), call.device)
        if call.chunk is not None:
            self.scan.chunk_size = call.chunk
        carries = self.letter == "M" or self.kind is FALCON_H1
        cache = self.cache(numerics.on(call.device, call.state), x_BTD.shape[0]) if carries else None
        y_BTD = self.mixed(x_BTD, call, cache).to(x_BTD.dtype)
        dy_BTD = None if call.dy is None else numerics.tensor(call.dy, strided=call.strided).to(call.device)
        gradients = {} if dy_BTD is None else self.gradients(y_BTD, dy_BTD, x_BTD)
        return BlockRun(
            y=numerics.array(y_BTD.detach()),
            gradients=numerics.arrays(gradients),
            state=numerics.arrays(self.state(cache)) if cache else {},
            seen=numerics.arrays({name: each.detach() for name, each in self.seen.items()}),
            strided=not x_BTD.is_contiguous(),
        )

    def put(self, ours: Mapping[str, Tensor], device: str) -> None:
        """Give the block's tensors to its modules; what the other half of the layer has stays on the meta device."""
        given = to_theirs(ours, self.links)
        missing = {link.theirs for link in self.links} - given.keys()
        if missing:
            raise AssertionError(f"no weights for {sorted(missing)}")
        for name, module in self.layer.named_modules():
            if name.endswith(("gate", "router")) and hasattr(module, "e_score_correction_bias"):
                given.setdefault(f"{name}.e_score_correction_bias", torch.zeros_like(ours["norm.weight"][:1]).expand(
                    self.recipe.moe.experts if self.recipe.moe else 0))  # fmt: skip
        empty = {name: each.shape for name, each in self.layer.state_dict().items() if not each.numel()}
        given |= {name: ours["norm.weight"].new_empty(shape) for name, shape in empty.items()}
        there = {name: each.to(device) for name, each in given.items()}
        self.layer.load_state_dict(there, strict=False, assign=True)

    def watch(self) -> None:
        """Record what the experts are handed, and what the indexer chooses."""
        for name, module in self.layer.named_modules():
            if name.endswith(".experts") and not isinstance(module, torch.nn.ModuleList):
                module.register_forward_pre_hook(lambda *told: self.routed(*told[1]))
            if name.endswith(".gate") and self.kind is DEEPSEEK_V3 and has_lists_of_experts(self.kind):
                module.register_forward_hook(lambda *told: self.routed(torch.empty(0), *told[2]))
            if name.endswith(".router") and self.kind.has("TopKGating"):
                module.register_forward_hook(lambda *told: self.sorted(*told[2]))
            if name == "self_attn.indexer":
                module.register_forward_hook(lambda *told: self.seen.update(selected=told[2]))

    def routed(self, x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor) -> None:
        self.seen.update(experts=experts_NK, gates=gates_NK)

    def sorted(self, _: Tensor, tokens: Tensor, gates: Tensor, sizes: list[int], *rest: Any) -> None:
        """What Granite's router reports up to 5.10, expert after expert; here it is reported token after token."""
        experts = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(tokens.device)
        order_NK = tokens.argsort(stable=True).view(int(tokens.max()) + 1, -1)
        self.seen.update(experts=experts[order_NK], gates=gates[order_NK])

    def mixed(self, x_BTD: Tensor, call: BlockCall, cache: Any) -> Tensor:
        """The layer's own call of its norm and its mixer."""
        norm = self.layer.get_submodule(self.norm)
        if self.letter == "M":
            given: dict[str, Any] = {"cache_params": cache, "cache": cache}  # its name from 5.24 on
            place = {"cache_position": torch.arange(1, 2, device=x_BTD.device)} if call.state and self.own_cache else {}
            scanned: Tensor = self.through(norm, self.scan, x_BTD, **releases.taken(self.scan.forward, given), **place)
            return scanned
        if self.letter == "A":
            return self.attended(norm, x_BTD, call, cache)
        if self.kind is GRANITE:
            layer = self.layer
            return self.routed_shape(
                self.through(norm, lambda each: _first(layer.block_sparse_moe(each)) + layer.shared_mlp(each), x_BTD)
            )
        branch = self.layer.mixer if self.kind is NEMOTRON_H else self.layer.mlp
        if self.recipe.moe is None or self.kind is DEEPSEEK_V3 or not has_lists_of_experts(self.kind):
            return self.routed_shape(_first(self.through(norm, branch, x_BTD)))
        decline({"adapter": {"no module is handed the choice of its experts": self.through is not _through}})
        with shims.Chosen() as chosen:
            y_BTD = _first(self.through(norm, branch, x_BTD))
        self.routed(y_BTD, chosen.places, chosen.values)
        return self.routed_shape(y_BTD)

    def routed_shape(self, y_BTD: Tensor) -> Tensor:
        if self.seen:
            count = self.recipe.moe.experts if self.recipe.moe else 0
            experts_NK = self.seen["experts"]
            told = self.seen | {"dropped": experts_NK >= count}  # its mark of what no expert here computes
            self.seen = {name: each.unflatten(0, y_BTD.shape[:2]) for name, each in told.items()}
            self.seen["counts"] = torch.bincount(experts_NK.flatten(), minlength=count)
        return y_BTD

    def attended(self, norm: Any, x_BTD: Tensor, call: BlockCall, cache: Any) -> Tensor:
        from transformers.masking_utils import create_causal_mask

        sparse = self.kind is DEEPSEEK_V32
        alone = torch.zeros(x_BTD.shape[:2], dtype=torch.int64)
        places_BT = places(alone if call.documents is None else numerics.tensor(call.documents)).to(x_BTD.device)
        asked: dict[str, Any] = {  # up to 4.57 the input has another name, and tokens are counted beside it
            "inputs_embeds": x_BTD, "input_embeds": x_BTD,
            "cache_position": torch.arange(x_BTD.shape[1], device=x_BTD.device),
            "allow_is_causal_skip": not sparse, "past_key_values": None, "cache": None,  # its name from 5.24 on
        }  # fmt: skip
        mask = create_causal_mask(
            config=self.config, attention_mask=None, position_ids=places_BT,
            **releases.taken(create_causal_mask, asked),
        )  # fmt: skip
        turns = self.kind.part("RotaryEmbedding")(self.config).to(x_BTD.device)(x_BTD, places_BT)
        if self.kind is FALCON_H1:
            return self.side_by_side(x_BTD, cache, position_embeddings=turns, attention_mask=mask)
        y_BTD: Tensor
        y_BTD, _ = self.through(
            norm, self.layer.self_attn, x_BTD, position_embeddings=turns, attention_mask=mask, position_ids=places_BT
        )
        if sparse:  # what it chose of what its own mask leaves visible
            chosen = torch.zeros_like(mask[:, 0]).scatter(-1, self.seen["selected"].long(), True)
            self.seen["selected"] = chosen & mask[:, 0]
        return y_BTD

    def side_by_side(self, x_BTD: Tensor, cache: Any, **given: Any) -> Tensor:
        """The layer is run up to its MLP, which is on the meta device; its own addition to the stream until there."""
        decline({"adapter": {"two mixers are asked of the whole layer, uncompiled": self.through is not _through}})
        reached: list[Tensor] = []

        def reach(_: Any, streams: tuple[Tensor, ...]) -> None:
            reached.append(streams[0])
            raise _ReachedError

        with contextlib.suppress(_ReachedError), self.layer.pre_ff_layernorm.register_forward_pre_hook(reach):
            self.layer(x_BTD, past_key_values=cache, **given)
        return reached[0] - x_BTD

    def cache(self, state: Mapping[str, Tensor], rows: int) -> Any:
        """A cache that a scan continues from and leaves its state in. It keeps one column more than a scan reads."""
        conv = torch.nn.functional.pad(torch.cat([state[name] for name in STATES], dim=1), (1, 0)) if state else None
        if self.own_cache:
            cache = self.own_cache(self.config, rows, dtype=self.scan.dt_bias.dtype)
            if conv is not None:
                cache.conv_states[0], cache.ssm_states[0], cache.has_previous_state = conv, state["ssm"], True
            return cache
        from transformers import DynamicCache

        cache = DynamicCache(config=self.config)
        if conv is not None:
            cache.update_conv_state(conv, 0)
            cache.update_recurrent_state(state["ssm"], 0)
        return cache

    def state(self, cache: Any) -> dict[str, Tensor]:
        mamba = self.recipe.mamba
        sizes = [mamba.heads * mamba.head_dim, mamba.groups * mamba.state, mamba.groups * mamba.state]
        if self.own_cache:
            conv, ssm = cache.conv_states[0], cache.ssm_states[0]
        elif hasattr(cache, "get_conv_state"):
            conv, ssm = cache.get_conv_state(0, state_idx=0), cache.get_recurrent_state(0, state_idx=0)
        else:  # a number of a state has been the key to each since 5.17
            conv, ssm = cache.layers[0].conv_states, cache.layers[0].recurrent_states
            if not isinstance(conv, Tensor):
                conv, ssm = conv[0], ssm[0]
        parts = zip(STATES, torch.split(conv[..., 1 - CONV_WIDTH :], sizes, dim=1), strict=True)
        return {"ssm": ssm.detach(), **{name: each.detach() for name, each in parts}}

    def gradients(self, y_BTD: Tensor, dy_BTD: Tensor, x_BTD: Tensor) -> dict[str, Tensor]:
        names = {link.theirs for link in self.links}
        leaves = {name: each for name, each in self.layer.named_parameters() if name in names} | {"x": x_BTD}
        found = gradients_of(y_BTD, dy_BTD, leaves)
        return {"x": found.pop("x"), **to_canonical(found, self.links)}

"""Training with Megatron-Core: its model, schedules and optimizer, on the ranks of the current world."""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contracts.instruments import numerics, traffic
from contracts.spec import (
    Arrays,
    Execution,
    Holding,
    Lack,
    NotOffered,
    Observed,
    Pass,
    Recipe,
    Refusals,
    Rehearsal,
    Routing,
    Session,
    Step,
    Tokens,
    Trained,
    refuse,
)
from contracts.stacks.kit import dry_runs, runs, worlds
from contracts.stacks.kit.tables import STATE
from contracts.stacks.megatron import checkpoint, distributed_optimizer, losses, muon
from contracts.stacks.megatron.abilities import BEFORE_17, FROM_18, NO_EVEN_ROUTER, NOT_SHARDED
from contracts.stacks.megatron.built_model import whole_of, whole_shapes
from contracts.stacks.megatron.distributed_optimizer import Pieces
from contracts.stacks.megatron.fsdp import (
    DRY_RUN_SHIMS,
    FSDP_SHIMS,
    gathered,
    is_sharded,
    local_of,
    put_shard,
    shape_of,
)
from contracts.stacks.megatron.hybrid_model import chunks_of
from contracts.stacks.megatron.mamba_kernels import kernels
from contracts.stacks.megatron.model import Plan, config_of, mask_of, planned
from contracts.stacks.megatron.optimizer import gradient, inner, main, optimizer_of, rate_of, share_of, wrapped
from contracts.stacks.megatron.process_groups import parallel
from contracts.stacks.megatron.rank_tensors import RankTensor, full_tensors, is_trained, rank_tensors_of
from contracts.stacks.megatron.shims import EXPERT_BIASES, mcore, older, running_on
from contracts.stacks.megatron.validation import Rows, validated
from contracts.stacks.megatron.weight_mapping import EXPERTS, cut, ours_of, theirs_of


@dataclass
class Prepared:
    """What a step's gradients were before they were clipped: those tensors, their norms, the full ones by our names."""

    clipped: list[Tensor] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """A model of Megatron-Core on this rank, with its optimizer and schedule."""

    def __init__(self, plan: Plan, execution: Execution, rates: Mapping[str, float] | None = None) -> None:
        self.plan, self.execution = plan, execution
        self.recipe = plan.recipe
        self.table = plan.table()
        self.config = config_of(plan)
        # as its training script seeds each stage; without it a run starts wherever the last one left the generator
        torch.manual_seed(self.recipe.seed + 100 * mcore("parallel_state").get_pipeline_model_parallel_rank())
        self.bare = [each.to(execution.device) for each in chunks_of(plan, self.config)]
        copies = execution.replicas if execution.fsdp else 0
        self.chunks = wrapped(plan, self.config, self.bare, copies, execution.device)
        self.config.finalize_model_grads_func = mcore("distributed.finalize_model_grads").finalize_model_grads
        if execution.fsdp:  # as its training does where reductions overlap; copies are reduced in the last microbatch
            self.config.no_sync_func = self.chunks[0].no_sync
        if plan.distributed and not plan.in_turns:
            distributed_optimizer.overlapped(self.config, self.chunks)
        self.optimizer = optimizer_of(plan, self.chunks, share_of(plan, rates or {}))
        self.pieces = Pieces(self.optimizer, [each.tensor for each in self.held]) if plan.distributed else None
        if self.config.fp16:
            self.config.grad_scale_func = self.optimizer.scale_loss
        self.rate = rate_of(self.recipe, self.optimizer)
        self.number = 0
        self.shapes = whole_shapes(self.recipe, self.table)

    @property
    def held(self) -> list[RankTensor]:
        """This rank's tensors, always in one order. A router in bfloat16 makes its bias anew in float32."""
        return [each for chunk in self.bare for each in rank_tensors_of(chunk, self.table)]

    def put(self, ours: Mapping[str, Tensor]) -> None:
        """Copy this rank's part of full tensors into the model.

        Raises:
            Refused: every name that is unknown, of another shape or, where weights are given, missing.
        """
        blank = {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}
        wanted = {name: tuple(each.shape) for name, each in ours_of(self.table, blank).items()}
        weights = {name for name in wanted if not name.endswith("router.bias")}
        found = Refusals()
        for name in sorted(ours.keys() | (weights if weights & ours.keys() else set())):
            if name not in wanted:
                found.add("weights", name, "has no place in the model", "give what `built` names")
            elif name not in ours:
                found.add("weights", name, "is missing", "give every weight that `built` names")
            elif (shape := tuple(ours[name].shape)) != wanted[name]:
                found.add("weights", name, f"has shape {shape}", f"give {wanted[name]}")
        found.raise_any()
        if not ours:
            return  # what was loaded stays: the float32 copies are more than the weights
        given = theirs_of(self.table, ours)
        parts = {
            n: cut(self.table[each.name], given[each.name], shape_of(each.tensor), each.part)
            for n, each in enumerate(self.held)
            if each.name in given
        }
        with torch.no_grad():
            for n, each in enumerate(self.held):
                if n in parts:
                    put_shard(each.tensor, parts[n]) if is_sharded(each.tensor) else each.tensor.copy_(parts[n])
            if self.execution.fsdp:
                for chunk in self.chunks:
                    chunk.module.install_optimized_model_weights()
                return
            self._hand_over(parts)

    def _hand_over(self, parts: Mapping[int, Tensor]) -> None:
        """Give the optimizer its float32 copies; the distributed one, as its --load-main-params-from-ckpt does."""
        if self.pieces is not None and self.recipe.optim.rule == "adamw":
            self.optimizer.reload_model_params(state_dict=self._named(parts))
            return
        self.optimizer.reload_model_params()
        if self.pieces is not None:
            self.pieces.put(parts)
            return
        for n, each in enumerate(self.held):
            if n in parts and main(each.tensor) is not each.tensor:  # as a checkpoint gives it
                main(each.tensor).copy_(parts[n])

    def _named(self, parts: Mapping[int, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Its state of weights, as a checkpoint has it: what is given, and the model's own of all others."""
        given = {id(self.held[n].tensor): part for n, part in parts.items()}
        return {
            key: {name: given.get(id(tensor), tensor) for name, tensor in chunk.named_parameters()}
            for key, chunk in zip(checkpoint.keys(self), self.bare, strict=True)
        }

    def close(self) -> None:
        """Release the model. Hooks of Megatron's DDP and FSDP keep it alive through autograd nodes, which Python's
        garbage collector does not follow, and with it every process group and gloo's threads."""
        held = [each for chunk in self.chunks for each in chunk.modules()]
        held += [each.param_and_grad_buffer for each in held if hasattr(each, "param_and_grad_buffer")]
        for each in held:
            vars(each).clear()

    def _whole(self, local: Mapping[int, Tensor]) -> dict[str, Tensor]:
        if self.pieces is not None:
            whole = self.pieces.whole(local)
        else:
            whole = gathered([each.tensor for each in self.held], local)
        return full_tensors(self.table, self.shapes, self.held, whole)

    def step(self, batch: Tokens, wanted: bool) -> Step:
        """One step over this rank's share of a batch."""
        losses.clear_losses()
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        rows = _share(batch, self.execution)
        told = self._forward_backward(rows)
        lm, tokens = _mean(told)
        with self._prepared(wanted) as seen:
            lr = self._lr()
            done, norm, _ = self.optimizer.step()
        if not done and not self.config.fp16:
            raise AssertionError("Megatron's optimizer left the step out")
        after = [float(each.norm()) for each in seen.clipped]
        if done:
            self.rate.step(increment=1)
        self.number += 1
        if self.plan.distributed and not self.plan.in_turns:
            distributed_optimizer.gather_from_now_on(self.config, self.chunks)
        scale = {"loss_scale": self.optimizer.get_loss_scale().double()} if self.config.fp16 else {}
        return Step(
            number=self.number, losses=self._losses(lm), tokens=tokens, lr=lr,
            grad_norm=float(norm) if done else math.nan, clip_coef=_shrunk(seen.norms, after),
            gradients=numerics.arrays(seen.gradients), seen=numerics.arrays(scale),
        )  # fmt: skip

    def settle(self) -> None:
        """Before a state is read: its FSDP is gathering the weights of the next step, and a state is of shards."""
        if self.execution.fsdp:
            for chunk in self.chunks:
                chunk.stop_communication()

    @contextlib.contextmanager
    def _prepared(self, wanted: bool) -> Iterator[Prepared]:
        """What the optimizer's step prepares and then clips: under float16 gradients without the loss scale."""
        seen, real = Prepared(), self.optimizer.prepare_grads

        def prepare() -> Any:
            found = real()
            seen.clipped = self._clipped()
            seen.norms = [float(each.norm()) for each in seen.clipped]
            seen.gradients = self.gradients() if wanted else {}
            return found

        self.optimizer.prepare_grads = prepare
        try:
            yield seen
        finally:
            del self.optimizer.prepare_grads

    def validated(self, batches: list[Rows]) -> float:
        """The loss of its training script's evaluation over this rank's rows of other batches."""
        losses.clear_losses()
        with distributed_optimizer.weights_gathered(self.chunks):
            return validated(self, batches, _token_losses)

    def passed(self, batch: Tokens, backward: bool) -> Pass:
        """One batch forward and backward; the logits come from the output layer."""
        (chunk,) = self.bare
        logits: list[Tensor] = []  # copies, because its cross entropy overwrites them
        hook = chunk.output_layer.register_forward_hook(lambda *told: logits.append(told[2][0].detach().clone()))
        losses.clear_losses()
        lm, _ = _mean(self._forward_backward(_share(batch, self.execution)))
        hook.remove()
        computed = self._losses(lm)
        *ahead, own = (each.transpose(0, 1) for each in logits)  # prediction heads come first
        told = self._returned(batch) if self.config.bf16 or self.config.fp16 else own
        if self.config.fp16:
            self.optimizer.prepare_grads()
        found = _told(self.gradients()) if backward else {}
        further = tuple(map(numerics.array, ahead))
        return Pass(logits=numerics.array(told), mtp_logits=further, losses=computed, gradients=found)

    @torch.no_grad()
    def _returned(self, batch: Tokens) -> Tensor:
        """The logits that the model returns where it has no labels: in bfloat16 its wrapper casts them."""
        if self.recipe.mtp is not None and not hasattr(mcore("transformer.multi_token_prediction"), "process_mtp_loss"):
            raise NotOffered(f"Megatron-Core: {BEFORE_17}", "stack")
        rows = _share(batch, self.execution)
        logits_BTV: Tensor = self.chunks[0](*_inputs(rows))
        return logits_BTV

    def _forward_backward(self, rows: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        cuts = self.execution.microbatches
        size = rows["tokens"].shape[0] // cuts
        if size * cuts != rows["tokens"].shape[0]:
            words = (
                f"its calculator asserts microbatches of one size, and these are {len(rows['tokens'])} rows in {cuts}"
            )
            raise NotOffered(f"Megatron-Core: {words}", "stack")
        run = mcore("pipeline_parallel").get_forward_backward_func()
        sources = [_microbatches(rows, cuts) for _ in self.chunks]
        found: list[Mapping[str, Tensor]] = run(
            forward_step_func=_forward_step,
            data_iterator=sources if len(sources) > 1 else sources[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=cuts,
            seq_length=rows["tokens"].shape[1],
            micro_batch_size=size,
            forward_only=False,
        )
        return found

    def _moved(self) -> dict[int, Tensor]:
        """What the optimizer moves of each tensor, by index in `held`: itself, its float32 copy, a piece of either."""
        if self.pieces is not None:
            return {n: piece.moved for n, piece in self.pieces.mine().items()}
        return {n: main(each.tensor) for n, each in enumerate(self.held) if is_trained(each)}

    def _clipped(self) -> list[Tensor]:
        """This rank's gradients, in the form in which its optimizer clips them."""
        return [local_of(moved.grad) for moved in self._moved().values() if moved.grad is not None]

    def gradients(self) -> dict[str, Tensor]:
        """Full gradients by our names, before the optimizer step; under float16 without the loss scale."""
        if self.config.fp16:
            return self._whole({n: moved.grad for n, moved in self._moved().items() if moved.grad is not None})
        if self.pieces is not None:
            return self._whole({n: each.of(gradient(self.held[n].tensor)) for n, each in self.pieces.mine().items()})
        return self._whole({n: gradient(each.tensor) for n, each in enumerate(self.held) if is_trained(each)})

    def weights(self) -> dict[str, Tensor]:
        """What the optimizer moves, by our names; what no rank's optimizer has, as the model has it."""
        moved = self._whole(self._moved())
        if not [name for name in whole_of(self.recipe).keys() - moved.keys() if not name.endswith("router.bias")]:
            return moved
        model = {n: each.tensor.float() for n, each in enumerate(self.held) if is_trained(each)}
        return full_tensors(self.table, self.shapes, self.held, model) | moved

    def buffers(self) -> dict[str, Tensor]:
        local = {n: each.tensor for n, each in enumerate(self.held) if not is_trained(each)}
        return full_tensors(self.table, self.shapes, self.held, local)

    def moments(self) -> dict[str, Tensor]:
        """The state of each parameter as `name/entry`."""
        states = [torch_optimizer.state for torch_optimizer in inner(self.optimizer)]
        found: dict[str, Tensor] = {}
        for entry in sum(STATE.values(), ()):
            local = {
                n: state[moved][entry]
                for n, moved in self._moved().items()
                for state in states
                if moved in state and entry in state[moved]
            }
            found |= {f"{name}/{entry}": each for name, each in self._whole(local).items()}
        return found

    def holding(self, n: int) -> Holding:
        """What this rank has of its tensor number `n` in `held`."""
        tensor, moved = self.held[n].tensor, self._moved().get(n)
        kept = [] if moved is None or moved is tensor else [moved]  # a float32 copy, or a piece of one
        if moved is not None:
            states = [each.state[moved] for each in inner(self.optimizer) if moved in each.state]
            kept += [each for held in states for each in held.values() if each.shape == moved.shape]
        grad = gradient(tensor)
        return Holding(
            weight=local_of(tensor).nbytes,
            gradient=0 if grad is None else local_of(grad).nbytes,
            state=sum(local_of(each).nbytes for each in kept),
        )

    def _lr(self) -> float:
        """The rate of the schedule, of which the groups with a rate of their own have a part."""
        return float(max(group["lr"] for each in inner(self.optimizer) for group in each.param_groups))

    def _losses(self, lm: float) -> dict[str, float]:
        """The losses of the whole batch, and `total` with their weights."""
        moe, mtp = self.recipe.moe, self.recipe.mtp
        found = {"lm": lm, **losses.reported_losses(self.plan, self.execution.microbatches)}
        if mtp is not None and mtp.loss_weight:
            found["mtp"] = self._of_heads()
        weights = {"lm": 1.0, "aux": moe.aux_loss if moe else 0.0, "z": moe.z_loss if moe else 0.0}
        weights["mtp"] = mtp.loss_weight if mtp else 0.0
        return found | {"total": sum(weights[name] * each for name, each in found.items())}

    def _of_heads(self) -> float:
        """The loss of prediction heads, of which each rank of a TP group records all."""
        batches = self.execution.microbatches * mcore("parallel_state").get_data_parallel_world_size()
        every = [0.0] * dist.get_world_size()
        with traffic.unrecorded():
            dist.all_gather_object(every, float(losses.noted_losses().get("mtp", torch.zeros(1)).sum()))
        mean: float = sum(every) / (batches * self.plan.degrees.tp)
        return mean


def _share(batch: Tokens, execution: Execution) -> dict[str, Tensor]:
    """The sequences of this data-parallel rank."""
    state = mcore("parallel_state")
    ranks, rank = state.get_data_parallel_world_size(), state.get_data_parallel_rank()
    tokens_BT = numerics.tensor(batch.tokens)
    if tokens_BT.shape[0] % ranks:
        raise refuse("batch.total", tokens_BT.shape[0], f"must be a multiple of dp ({ranks})", "choose a multiple")
    documents_BT = torch.zeros_like(tokens_BT) if batch.documents is None else numerics.tensor(batch.documents)
    rows = {"tokens": tokens_BT, "labels": numerics.tensor(batch.labels), "documents": documents_BT}
    return {name: each.chunk(ranks)[rank].to(execution.device) for name, each in rows.items()}


def _microbatches(rows: Mapping[str, Tensor], cuts: int) -> Iterator[dict[str, Tensor]]:
    for place in range(cuts):
        yield {name: each.chunk(cuts)[place] for name, each in rows.items()}


def _forward_step(source: Iterator[dict[str, Tensor]], model: Any, *_: Any) -> Any:
    """The forward step of Megatron's pretraining scripts: the loss of each token, and the function that sums it."""
    losses_BT, counts_BT = _token_losses(next(source), model)
    return losses_BT, functools.partial(_summed, counts_BT)


def _token_losses(rows: Mapping[str, Tensor], model: Any) -> tuple[Tensor, Tensor]:
    """The loss of each token, and whether its label counts."""
    labels_BT = rows["labels"]
    counts_BT = labels_BT >= 0
    ahead = mcore("utils").get_model_config(model).mtp_num_layers  # whose heads learn every label that is not masked
    told = {"loss_mask": counts_BT.to(torch.get_default_dtype())} if ahead else {}
    losses_BT: Tensor = model(*_inputs(rows), labels=labels_BT.clamp(min=0), **told)
    return losses_BT, counts_BT


def _inputs(rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their positions in the row, and which keys a query may not see."""
    tokens_BT = rows["tokens"]
    places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
    return tokens_BT, places_T.expand(tokens_BT.shape), mask_of(rows["documents"])


def _summed(counts_BT: Tensor, losses_BT: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    total = (losses_BT * counts_BT).sum()
    tokens = counts_BT.sum().to(torch.int)
    return total, tokens, {"sum": total.detach().clone(), "tokens": tokens.clone()}


def _mean(told: list[Mapping[str, Tensor]]) -> tuple[float, int]:
    """The mean loss per label and the number of labels, over the ranks that saw them; each batch counts once."""
    state = mcore("parallel_state")
    mine = [(float(each["sum"]), int(each["tokens"])) for each in told]
    if not mine or state.get_tensor_model_parallel_rank() or not state.is_pipeline_last_stage(ignore_virtual=True):
        mine = []
    every: list[Any] = [None] * dist.get_world_size()
    with traffic.unrecorded():
        dist.all_gather_object(every, mine)
    rows = [row for rows in every for row in rows]
    tokens = sum(count for _, count in rows)
    return sum(total for total, _ in rows) / max(1, tokens), tokens


def _shrunk(before: list[float], after: list[float]) -> float:
    """The clipping factor of this rank's gradients, read off the largest of them."""
    largest = max(range(len(before)), key=before.__getitem__, default=-1)
    return after[largest] / before[largest] if largest >= 0 and before[largest] else 1.0


def _dtype(recipe: Recipe, execution: Execution) -> torch.dtype:
    named = {"float64": torch.float64, "float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return named.get(recipe.dtype if execution.precision == "declared" else execution.precision, torch.float32)


def _offered(session: Session) -> None:
    execution = session.execution
    reasons: tuple[tuple[bool, str, Lack], ...] = (
        (execution.compile != "none", "it has no option that compiles the model", "stack"),
        (execution.fsdp and (session.save is not None or session.load is not None),
         "checkpoints of its FSDP have a format of their own, which is not asked yet", "adapter"),
        (execution.fsdp and execution.degrees.pp > 1,
         "the mesh of its FSDP has data, expert and tensor ranks and no stages", "stack"),
        (not session.batches and session.steps > 0, "it reads data sets of its own, not the recipe's", "case"),
        (bool(session.validation) and older(), f"validation: {FROM_18}", "adapter"),
        (session.keep is not None or session.durable is not None,
         "it removes no checkpoints; of its training script, which 0.16.1 has not, --save-retain-interval keeps "
         "every n-th and no newest", "stack"),
    )  # fmt: skip
    for holds, words, lack in reasons:
        if holds:
            raise NotOffered(f"Megatron-Core: {words}", lack)


@contextlib.contextmanager
def _running(
    recipe: Recipe, execution: Execution, batches: Iterable[Tokens] = (), distributed: bool = False, dry: bool = False,
    rates: Mapping[str, float] | None = None,
) -> Iterator[Trainer]:  # fmt: skip
    """A trainer on the ranks of an execution, while a question is answered; `dry` where no other rank is here."""
    dtype = _dtype(recipe, execution)
    interleaved = execution.schedule == "interleaved"
    plan = planned(recipe, execution.degrees, dtype, interleaved=interleaved, families="AEM")
    if "M" in plan.letters and any(map(runs.packed, batches)):
        raise NotOffered(
            "Megatron-Core: packed rows are one sequence to its mixers and several to its attention here", "case"
        )
    plan = replace(plan, recompute=execution.recompute or recipe.recompute == "full")
    # Muon's layer-wise optimizer wraps only what trains in bfloat16
    plan = replace(plan, distributed=distributed and (recipe.optim.rule == "adamw" or dtype is torch.bfloat16))
    if execution.fsdp and distributed:
        raise NotOffered(f"Megatron-Core: {NOT_SHARDED}", "stack")
    if execution.fsdp and older():
        raise NotOffered(f"Megatron-Core: FSDP: {FROM_18}")
    if execution.fsdp and dtype is torch.float64:
        raise NotOffered("Megatron-Core: the buffers of its FSDP know no float64", "stack")
    if execution.fsdp and dtype is torch.float16:
        raise NotOffered("Megatron-Core: under a loss scale its FSDP raises where a rank has an empty shard", "stack")
    whole_of(recipe)  # built before there are groups
    besides = (
        *kernels(plan.letters),
        *losses.SHIMS,
        *((EXPERT_BIASES,) if "experts" in recipe.biases else ()),
        *(FSDP_SHIMS if execution.fsdp else ()),
        *(DRY_RUN_SHIMS if execution.fsdp and dry else ()),
        *(distributed_optimizer.SHIMS if plan.distributed else ()),
        *(muon.wide() if recipe.optim.rule == "muon" and dtype is torch.float64 else ()),
    )
    with (
        running_on(execution.device, wide=dtype is torch.float64, besides=besides),
        parallel(
            execution.degrees,
            execution.world,
            virtual=plan.chunks if plan.chunks > 1 else None,
            copies=execution.replicas,
            device=execution.device,
        ),
    ):
        trainer = Trainer(plan, execution, rates)
        try:
            yield trainer
        finally:
            trainer.close()


def initial(recipe: Recipe) -> Arrays:
    """The weights that Megatron draws on one rank."""
    with _running(recipe, Execution()) as trainer:
        return _told(trainer.weights())


def run_model(recipe: Recipe, execution: Execution, weights: Arrays, batch: Tokens, backward: bool) -> Pass:
    """One batch through Megatron's schedule, forward and backward, without a step.

    Raises:
        NotOffered: for what Megatron does not have, or not on a CPU, and for several ranks or microbatches.
    """
    _offered(Session(recipe=recipe, steps=0, execution=execution))
    if execution.world > 1 or execution.microbatches > 1:
        raise NotOffered("Megatron-Core: a single pass is one process's, whole; sessions have the rest")
    with _running(recipe, execution, (batch,)) as trainer:
        trainer.put(numerics.tensors(weights))
        return trainer.passed(batch, backward)


def train(session: Session, *, distributed: bool = False) -> Trained:
    """A run of steps over the ranks of an execution.

    Args:
        distributed: whether its optimizer is.

    Raises:
        NotOffered: for what Megatron does not have, or not on a CPU.
        Refused: for what Megatron refuses, in its words.
    """
    _offered(session)
    with _running(session.recipe, session.execution, session.batches, distributed, rates=session.rates) as trainer:
        if session.load is not None:
            checkpoint.load(trainer, session.load)
        trainer.put(numerics.tensors(session.weights) | numerics.tensors(session.buffers))
        # too few are refused before a step
        others: list[Rows] = [_share(each, session.execution) for each in session.validation]
        start, loaded = trainer.number, None
        if session.load is not None and 0 in session.at:
            nothing = Step(number=start, losses={}, tokens=0, lr=0.0, grad_norm=0.0, clip_coef=1.0)
            loaded = _with_state(trainer, nothing, session.observe)
        steps = tuple(_seen(trainer, session, index, others) for index in range(session.steps))
    return Trained(start=start, steps=steps, loaded=loaded)


@functools.lru_cache(maxsize=64)  # several questions are about one step
def rehearsed(
    recipe: Recipe, execution: Execution, rank: int, routing: Routing, distributed: bool = False
) -> Rehearsal:
    """One step over torch's fake backend, as its --fake-process-group has it.

    Raises:
        NotOffered: for what Megatron does not have, or not on a CPU. Refused: for a rank that is not in the world.
    """
    dry_runs.refuse_rank(execution, rank)
    _offered(Session(recipe=recipe, steps=0, execution=execution))
    if recipe.moe is not None and (routing != "balanced" or execution.degrees.ep > 1):
        raise NotOffered(f"Megatron-Core: {NO_EVEN_ROUTER}", "stack")
    batch = dry_runs.rows_of(recipe)
    alone = execution.world == 1
    with (
        contextlib.nullcontext() if alone else worlds.pretended(execution.world, rank),
        _running(recipe, execution, (batch,), distributed, dry=True) as trainer,
    ):
        trainer.step(batch, False)  # the first one gathers what its FSDP gathers ahead of all others
        with traffic.recorded() as issued:
            trainer.step(batch, False)
        trainer.settle()
        held = {each.name: trainer.holding(n) for n, each in enumerate(trainer.held) if is_trained(each)}
    return dry_runs.rehearsal(issued, held, {name for name in held if EXPERTS in name})


def _seen(trainer: Trainer, session: Session, index: int, others: list[Rows]) -> Step:
    """One step of a session, its validation, the observed state after them, and its checkpoint."""
    number = trainer.number + 1
    observed = session.observe if not session.at or number in session.at else frozenset()
    step = trainer.step(session.batches[index], "gradients" in observed)
    due = others and number in session.validate_at
    if observed - {"gradients"} or due:
        trainer.settle()
    if due:
        step = replace(step, validation=trainer.validated(others))
    step = _with_state(trainer, step, observed)
    if session.save is not None and number in session.save_at:
        checkpoint.save(trainer, session.save)
    return step


def _with_state(trainer: Trainer, step: Step, observed: frozenset[Observed]) -> Step:
    return replace(
        step,
        weights=_told(trainer.weights()) if "weights" in observed else {},
        buffers=_told(trainer.buffers()) if "buffers" in observed else {},
        optimizer=_told(trainer.moments()) if "optimizer" in observed else {},
    )


def _told(tensors: Mapping[str, Tensor]) -> Arrays:
    return numerics.arrays(tensors)

"""Megatron-Core's GPT, DDP, optimizer and schedule of a step, as its QuickStart puts them together. It knows nothing of
rankproof. On a CPU: rankproof observe --on-cpu megatron, which runs it by the shims of the adapter.

    torchrun --nproc-per-node 2 train_megatron.py --tp 2
    torchrun --nproc-per-node 2 train_megatron.py --distributed-optimizer
    torchrun --nproc-per-node 2 train_megatron.py --tp 2 --experts 4     # both ranks hold the same experts
"""

import argparse
import os

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig


def forward_step(batches, model):
    text = next(batches).cuda()
    tokens, labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    length = tokens.shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1).cuda()
    losses = model(tokens, torch.arange(length).expand_as(tokens).cuda(), mask, labels=labels)
    return losses, lambda losses: (losses.float().mean(), {})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--experts", type=int)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--torch-optimizer", action="store_true", help="torch's Adam, as in the QuickStart")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--evaluate", action="store_true", help="after each step")
    parser.add_argument("--save", help="an empty folder for a checkpoint after step 2")
    parser.add_argument("--load", help="a folder with such a checkpoint, to continue from")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="rows of all ranks together")
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize_model_parallel(args.tp, expert_model_parallel_size=args.ep, expert_tensor_parallel_size=1)
    model_parallel_cuda_manual_seed(123)
    torch.manual_seed(123)

    experts = {"num_moe_experts": args.experts, "moe_router_topk": 2, "add_bias_linear": False,
               "moe_ffn_hidden_size": 32, "moe_token_dispatcher_type": "alltoall",
               "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
               } if args.experts else {}  # fmt: skip
    recomputed = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1,
                  } if args.recompute else {}  # fmt: skip
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, use_cpu_initialization=True,
        pipeline_dtype=dtype, params_dtype=dtype, bf16=args.bf16, tensor_model_parallel_size=args.tp,
        sequence_parallel=bool(args.experts) and args.tp > 1, expert_model_parallel_size=args.ep,
        expert_tensor_parallel_size=1, gated_linear_unit=True, normalization="RMSNorm", hidden_dropout=args.dropout,
        attention_dropout=args.dropout, **recomputed, **experts,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(args.experts, moe_grouped_gemm=False, normalization="RMSNorm")
    model = GPTModel(config, spec, vocab_size=96, max_sequence_length=32).cuda()
    if args.bf16:
        model = Float16Module(config, model)
    sharded = args.distributed_optimizer
    wrapping = DistributedDataParallelConfig(use_distributed_optimizer=sharded, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, wrapping, model)
    if args.torch_optimizer:
        optimizer = torch.optim.Adam(model.parameters())
    else:
        given = OptimizerConfig(lr=1e-3, weight_decay=0.1, clip_grad=1.0, bf16=args.bf16, params_dtype=dtype,
                                use_distributed_optimizer=sharded)  # fmt: skip
        optimizer = get_megatron_optimizer(given, [model])

    rank, world = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    torch.manual_seed(123 + 10 * rank)
    model_parallel_cuda_manual_seed(123 + 10 * rank, force_reset_rng=True)  # as --data-parallel-random-init does
    data = torch.Generator().manual_seed(0)
    every = [torch.randint(96, (args.batch, 17), generator=data)[rank::world] for _ in range(args.steps + 1)]
    texts, held_out = iter(every[:-1]), every[-1:]

    def state(loading: bool) -> dict:
        weights = model.module.sharded_state_dict()
        return {"model": weights, "optimizer": optimizer.sharded_state_dict(weights, is_loading=loading)}

    if args.load:
        loaded = dist_checkpointing.load(state(True), args.load)
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    for step in range(1, args.steps + 1):
        if args.load and step <= 2:
            next(texts)
            continue
        optimizer.zero_grad()
        if not args.torch_optimizer:
            model.zero_grad_buffer()
        given = {"forward_step_func": forward_step, "model": model, "num_microbatches": 1, "seq_length": 16,
                 "micro_batch_size": args.batch // world}  # fmt: skip
        get_forward_backward_func()(data_iterator=texts, forward_only=False, **given)
        finalize_model_grads([model])
        optimizer.step()
        if args.save and step == 2:
            dist_checkpointing.save(state(False), args.save)
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                get_forward_backward_func()(data_iterator=iter(held_out), forward_only=True, **given)
            model.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

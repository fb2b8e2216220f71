"""With sequence parallel, Megatron-Core 0.16 to 0.18 report the z loss of one TP rank's tokens. PR 3199.

The router hands its report no group to average over. Exit code 0: it is so.
"""
import sys, tempfile

import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter


def reported(rank, ranks, folder):
    torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{ranks}", rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(ranks, create_gloo_process_groups=False)
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_router_topk=2, moe_z_loss_coeff=0.1,
        moe_router_load_balancing_type="none", tensor_model_parallel_size=ranks, sequence_parallel=ranks > 1,
        add_bias_linear=False, use_cpu_initialization=True)
    groups, x = ProcessGroupCollection.use_mpu_process_groups(), torch.linspace(0, 4, 128).view(16, 1, 8).chunk(ranks)[rank]
    router = TopKRouter(config, groups)
    router.set_layer_number(1)
    moe_utils.te_general_gemm = None  # 0.16 does not define it without Transformer Engine
    torch.nn.init.constant_(router.weight, 0.5)
    router(x)
    total, later = {}, hasattr(moe_utils, "get_moe_metrics_tracker")
    report = moe_utils.get_moe_metrics_tracker().report if later else moe_utils.track_moe_metrics
    report(loss_scale=1.0, iteration=1, num_layers=1, total_loss_dict=total, track_names=["z_loss"], pg_collection=groups)
    torch.save(float(total["z_loss"]), f"{folder}/z-{ranks}-{rank}")


with tempfile.TemporaryDirectory() as at:
    for ranks in (1, 2):
        torch.multiprocessing.start_processes(reported, (ranks, at), ranks, start_method="fork")
    whole, *parts = (torch.load(f"{at}/z-{name}") for name in ("1-0", "2-0", "2-1"))
print(f"the z loss of 16 tokens is {whole:.4g}; with TP 2 the ranks report {parts[0]:.4g} and {parts[1]:.4g}")
sys.exit(not (abs(sum(parts) / 2 - whole) < 1e-4 * whole and abs(parts[0] - whole) > 0.1 * whole))

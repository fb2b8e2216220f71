"""Given the padding, seq_aux_loss weighs a row by the square of its tokens: one with few of them is hardly balanced.
Exit code 0: the fault is there. Run with an interpreter that has megatron-core 0.17 or later.
"""
import sys
import torch
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
try:
    from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker as cleared, get_moe_metrics_tracker
except ImportError:  # up to 0.17
    get_moe_metrics_tracker, cleared = None, moe_utils.clear_aux_losses_tracker

torch.cuda.current_device, torch.cuda.current_stream = (lambda: "cpu"), (lambda *_: None)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
config = TransformerConfig(
    num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=4, moe_router_topk=1, moe_aux_loss_coeff=0.01,
    moe_router_load_balancing_type="seq_aux_loss", moe_router_pre_softmax=True, use_cpu_initialization=True)
router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups())
router.layer_number = 1


def loss(x, padding=None):
    cleared()
    router(x, padding_mask=padding)
    if get_moe_metrics_tracker is None:
        return float(moe_utils.get_moe_layer_wise_logging_tracker()["seq_load_balancing_loss"]["values"].sum())
    return float(get_moe_metrics_tracker().metrics["seq_load_balancing_loss"].values.sum())


x = torch.randn(8, 2, 8)
alone = [loss(x[:, :1]), loss(x[:2, 1:])]  # a row of eight tokens, and one of two
padded = loss(x, torch.arange(8)[:, None] >= torch.tensor([8, 2]))
want, squares = sum(alone) / 2, (alone[0] * 64 + alone[1] * 4) / 25 / 2
print(f"losses of only the rows {alone}, their mean {want:.4f}; in one batch {padded:.4f}, by squares {squares:.4f}")
torch.distributed.destroy_process_group()
sys.exit(not (abs(padded - squares) < 1e-3 < abs(padded - want)))

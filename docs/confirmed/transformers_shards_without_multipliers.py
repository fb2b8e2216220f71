"""Falcon-H1's `mup_vector`, a buffer that no checkpoint has, is memory that nobody wrote after `from_pretrained` with a
`distributed_config`. One process has it right. The logits are nan, or whatever was there. It starts itself on two ranks.
"""
import os, sys, tempfile

if "RANK" not in os.environ:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__)
    os.execv(sys.executable, (sys.executable, *words))
import torch
import torch.distributed as dist
from transformers import FalconH1Config, FalconH1ForCausalLM
from transformers.distributed import DistributedConfig

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
    "mamba_n_groups": 4, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
MULTIPLIERS = [2.0, 3.0, 4.0, 5.0, 6.0]  # of z, x, B, C and dt


def held(model) -> list[list[float]]:
    places = [0, 64, 128, 160, 192]  # the first of each
    return [layer.mamba.mup_vector.flatten()[places].tolist() for layer in model.model.layers]


dist.init_process_group("gloo")
(folder,) = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
folders = [folder]
dist.broadcast_object_list(folders)
if dist.get_rank() == 0:
    FalconH1ForCausalLM(FalconH1Config(**SIZES, ssm_multipliers=MULTIPLIERS)).save_pretrained(folders[0])
dist.barrier()
whole = held(FalconH1ForCausalLM.from_pretrained(folders[0]))
torch.full((1 << 20,), float("nan"))  # so that memory that is used again is no zero
cut = held(FalconH1ForCausalLM.from_pretrained(folders[0], distributed_config=DistributedConfig(fsdp_size=2)))
print(f"rank {dist.get_rank()}: the multipliers are {whole[0]} in one process and {cut} when it is sharded")
sys.exit(not (whole == [MULTIPLIERS] * 2 and all(each != MULTIPLIERS for each in cut)))

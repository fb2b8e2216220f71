"""The Trainer lets A_log, D and NemotronH's last norm decay.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys
import tempfile

from transformers import NemotronHConfig, NemotronHForCausalLM, Trainer, TrainingArguments

config = NemotronHConfig(
    vocab_size=32, hidden_size=16, layers_block_type=["linear_attention", "mlp"], mamba_num_heads=4, mamba_head_dim=8,
    n_groups=2, ssm_state_size=8, intermediate_size=16,
)
model = NemotronHForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    given = TrainingArguments(output_dir=folder, weight_decay=0.1, use_cpu=True, report_to=[])
    optimizer = Trainer(model=model, args=given).create_optimizer()
decays = {id(each): group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
vectors = {name: decays[id(each)] for name, each in model.named_parameters() if each.dim() == 1}
for name, decay in vectors.items():
    print(f"{name} decays by {decay}")
wrong = {name.rpartition("layers.0.")[2] for name, decay in vectors.items() if decay}
sys.exit(wrong != {"mixer.A_log", "mixer.D", "model.norm_f.weight"})

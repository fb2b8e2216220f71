"""The norms of DeepSeek-V3's and V3.2's latents have epsilon 1e-6, whatever rms_norm_eps the configuration names.

Run with an interpreter that has transformers 5.23.0. Exit code 0: the fault is there.
"""
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

found = {}
for kind in ("deepseek_v3", "deepseek_v32"):
    config = AutoConfig.for_model(kind, num_hidden_layers=1, rms_norm_eps=1e-5, vocab_size=32)
    with torch.device("meta"):
        layer = AutoModelForCausalLM.from_config(config).model.layers[0]
    norms = {"before": layer.input_layernorm, "of queries": layer.self_attn.q_a_layernorm}
    norms["of keys"] = layer.self_attn.kv_a_layernorm
    found[kind] = {name: norm.variance_epsilon for name, norm in norms.items()}
    print(kind, found[kind], "the configuration says", config.rms_norm_eps)
sys.exit(not all(each == {"before": 1e-5, "of queries": 1e-6, "of keys": 1e-6} for each in found.values()))

"""A load of Megatron-Core up to 0.18 takes two parameter groups that differ in their rate for one. PR 4705.

With --decoupled-lr a resumed run has one rate for both, or is refused. Exit code 0: it is so.
"""
import sys

from megatron.core.optimizer.optimizer import MegatronOptimizer

common = {"wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False}
groups = [{**common, "params": [at], "max_lr": lr, "min_lr": lr / 10} for at, lr in enumerate((1e-2, 1e-4))]
saved = [dict(each) for each in groups]
found = MegatronOptimizer._filter_and_reorder_param_groups(groups, saved)
rates = [each["max_lr"] for each in found]
print(f"saved with the rates {[each['max_lr'] for each in groups]}, loaded with {rates}")
sys.exit(rates != [1e-4, 1e-4])

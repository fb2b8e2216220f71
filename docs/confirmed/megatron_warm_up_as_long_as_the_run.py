"""Megatron-Core refuses a warm-up that is as long as the run, or longer, by an assertion that says nothing.

Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import types
import warnings

warnings.simplefilter("ignore")
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

said = {}
for warm_up, steps in ((3, 4), (4, 4), (6, 3)):
    optimizer = types.SimpleNamespace(param_groups=[{"lr": 0.0, "weight_decay": 0.0}])
    try:
        OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=1.0, min_lr=0.2, lr_warmup_steps=warm_up, lr_decay_steps=steps,
            lr_decay_style="cosine", start_wd=0.0, end_wd=0.0, wd_incr_steps=0, wd_incr_style="constant",
            use_checkpoint_opt_param_scheduler=False,
        )  # fmt: skip
        said[warm_up] = "accepted"
    except AssertionError as error:
        said[warm_up] = f"AssertionError {str(error)!r}"
    print(f"a warm-up of {warm_up} in a run of {steps}: {said[warm_up]}")
sys.exit(list(said.values()) != ["accepted", "AssertionError ''", "AssertionError ''"])

"""If a warm-up is as long as the run or longer, its last step takes the lowest rate, and the full rate is never taken.
python docs/confirmed/olmo_core_warm_up_ends_low.py      # OLMo-core 3.0.0, a CPU
"""
import sys

from olmo_core.optim import ConstantWithWarmup, CosWithWarmup, LinearWithWarmup

print("with a constant rate after it:", [ConstantWithWarmup(warmup=4).get_lr(1.0, step, 4) for step in range(1, 5)])
low = []
for kind in (CosWithWarmup, LinearWithWarmup):
    for warmup, steps in ((4, 4), (6, 3)):
        rates = [kind(warmup=warmup, alpha_f=0.1).get_lr(1.0, step, steps) for step in range(1, warmup + 1)]
        print(f"{kind.__name__}, {warmup} steps of warm-up in a run of {steps}:", [round(each, 3) for each in rates])
        low.append(rates[-1] == 0.1)
sys.exit(not all(low))

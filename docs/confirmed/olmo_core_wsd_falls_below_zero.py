"""WSD past its end has a rate below zero, and in a run whose decay rounds to no step it raises ZeroDivisionError.
python docs/confirmed/olmo_core_wsd_falls_below_zero.py      # OLMo-core 3.0.0, a CPU
"""
import sys

from olmo_core.optim import WSD, CosWithWarmup, LinearWithWarmup

past = {type(each).__name__: each.get_lr(1.0, 12, 10) for each in (
    WSD(warmup=2, decay_fraction=0.2), CosWithWarmup(warmup=2, alpha_f=0.1), LinearWithWarmup(warmup=2, alpha_f=0.1),
)}
print(f"the rate of step 12 in a run of 10: {past}")
try:
    words = str(WSD(warmup=1, decay_fraction=0.1).get_lr(1.0, 4, 4))
except ZeroDivisionError as error:
    words = f"ZeroDivisionError: {error}"
print(f"the rate of the last step of 4, of which a tenth is to decay: {words}")
sys.exit(not (past["WSD"] < 0 and "ZeroDivisionError" in words))

"""OPT: parameter groups, weight decay, schedule, clipping, updates."""

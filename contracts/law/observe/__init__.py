"""OBS: what every healthy training run keeps, judged from one trace, or from two that must agree."""

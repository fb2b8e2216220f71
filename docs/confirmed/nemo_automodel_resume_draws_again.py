"""A resumed run draws once more from torch's generator than one that was not stopped: its generators are loaded first, and
then its loader makes an iterator, which draws a seed. Dropout after that is another.
python docs/confirmed/nemo_automodel_resume_draws_again.py      # NeMo AutoModel 0.7.0, a CPU
"""
import sys

import torch
from nemo_automodel.components.datasets.utils import default_collater
from nemo_automodel.components.training.rng import StatefulRNG
from torchdata.stateful_dataloader import StatefulDataLoader


def parts():
    """What `setup` makes: its generators and its loader."""
    rows = [{"input_ids": [number], "labels": [number]} for number in range(8)]
    return StatefulRNG(seed=1), StatefulDataLoader(rows, batch_size=1, collate_fn=default_collater)


rng, loader = parts()
steps = iter(loader)
next(steps)
saved = rng.state_dict(), loader.state_dict()  # as `save_checkpoint` does after a step
through = next(steps)["input_ids"], torch.rand(1)
rng, loader = parts()
loader.load_state_dict(saved[1])  # dataloader before rng, as `load_checkpoint` sorts them
rng.load_state_dict(saved[0])
resumed = next(iter(loader))["input_ids"], torch.rand(1)
print(f"the next row is {through[0].item()} and {resumed[0].item()}, the next draw {through[1].item():.4f} and {resumed[1].item():.4f}")
sys.exit(not (torch.equal(through[0], resumed[0]) and not torch.equal(through[1], resumed[1])))

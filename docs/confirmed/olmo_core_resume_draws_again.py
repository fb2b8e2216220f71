"""A resumed run makes the iterator of its loader anew, which draws from torch's generator: its dropout differs from that
of a run that was not stopped.
python docs/confirmed/olmo_core_resume_draws_again.py      # OLMo-core 3.0.0, a CPU
"""
import sys
import tempfile

import numpy as np
import torch
from olmo_core.data import DataCollator, NumpyFSLDataLoader, NumpyFSLDataset

def loader(folder):
    rows = NumpyFSLDataset(
        f"{folder}/text.npy", sequence_length=8, pad_token_id=0, eos_token_id=0, vocab_size=64, dtype=np.uint16)
    rows.prepare()
    return NumpyFSLDataLoader(rows, collator=DataCollator(pad_token_id=0), global_batch_size=16, work_dir=folder)

with tempfile.TemporaryDirectory() as folder:
    np.arange(512, dtype=np.uint16).tofile(f"{folder}/text.npy")
    on, again = loader(folder), loader(folder)
    on.reshuffle(epoch=1)
    rows = iter(on)
    next(rows)
    generator, position = torch.get_rng_state(), on.state_dict()  # what a checkpoint has
    one = next(rows)["index"].tolist()
    straight = torch.rand(3)
    torch.set_rng_state(generator)  # as Trainer.load_state_dict, before `_fit_epoch` begins
    again.load_state_dict(position)
    again.reshuffle(epoch=1)
    two = next(iter(again))["index"].tolist()
    resumed = torch.rand(3)
print(f"with rows {one} a run that was not stopped draws {straight.tolist()}; with rows {two} a resumed one {resumed.tolist()}")
sys.exit(one != two or torch.equal(straight, resumed))

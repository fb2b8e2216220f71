"""A configuration for torchtitan's own train.py: its Llama, small, over random tokens, without a tokenizer's files.

    rankproof observe --on-cpu torchtitan --out runs/one -m torchtitan.train --module observe_titan --config one_rank
    torchrun --no-python --nproc-per-node 2 rankproof observe --on-cpu torchtitan --out runs/two \
      -m torchtitan.train --module observe_titan --config two_ranks
"""

from dataclasses import dataclass

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

BATCH, LENGTH = 4, 32


class Untold(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *_: object, **__: object) -> list[int]:
        return []

    def decode(self, *_: object, **__: object) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return 2048


class Random(IterableDataset):
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __iter__(self):
        drawn = torch.Generator().manual_seed(0)
        while True:
            for row in torch.randint(2048, (BATCH, LENGTH + 1), generator=drawn)[self.rank :: self.world]:
                yield {"input": row[:-1], "positions": torch.arange(LENGTH)}, row[1:]


class Rows(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: object) -> None:
        super().__init__(Random(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size)

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        pass


def _config(ranks: int) -> Trainer.Config:
    spec = model_registry("debugmodel")
    del spec.model.layers[2:]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec, tokenizer=Untold.Config(), dataloader=Rows.Config(), optimizer=default_adamw(lr=1e-3),
        loss=CrossEntropyLoss.Config(), checkpoint=CheckpointManager.Config(enable=False),
        training=TrainingConfig(local_batch_size=BATCH // ranks, seq_len=LENGTH, steps=2, dtype="float32",
                                mixed_precision_param="float32", disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"), activation_checkpoint=None,
        debug=DebugConfig(seed=7, enable_structured_logging=False),
    )  # fmt: skip


def one_rank() -> Trainer.Config:
    return _config(1)


def two_ranks() -> Trainer.Config:
    return _config(2)


def four_ranks() -> Trainer.Config:
    return _config(4)

"""A configuration for torchtitan's own train.py: its Llama, small, over random tokens, without a tokenizer's files.

    rankproof observe --on-cpu torchtitan --out runs/one -m torchtitan.train --module train_torchtitan --config one_rank
    torchrun --no-python --nproc-per-node 2 rankproof observe --on-cpu torchtitan --out runs/two \
      -m torchtitan.train --module train_torchtitan --config two_ranks

`saved` and `resumed` write and read checkpoints under --dump_folder.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models import llama3, qwen3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.protocols.model_spec import ModelSpec
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
        self.rank, self.world, self.given = rank, world, 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        drawn = torch.Generator().manual_seed(0)
        rows = (row for _ in itertools.count() for row in torch.randint(2048, (BATCH, LENGTH + 1), generator=drawn))
        for row in itertools.islice(rows, self.given * self.world + self.rank, None, self.world):
            self.given += 1
            yield {"input": row[:-1], "positions": torch.arange(LENGTH)}, row[1:]

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.given = state_dict["given"]


class Rows(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: object) -> None:
        super().__init__(Random(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size)


def _config(ranks: int, spec: ModelSpec | None = None, ep: int = 1) -> Trainer.Config:
    spec = spec or llama3.model_registry("debugmodel")
    del spec.model.layers[2:]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec, tokenizer=Untold.Config(), dataloader=Rows.Config(), optimizer=default_adamw(lr=1e-3),
        loss=CrossEntropyLoss.Config(), checkpoint=CheckpointManager.Config(enable=False),
        training=TrainingConfig(local_batch_size=BATCH // ranks, seq_len=LENGTH, steps=2, dtype="float32",
                                mixed_precision_param="float32", disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", expert_parallel_degree=ep),
        activation_checkpoint=None,
        debug=DebugConfig(seed=7, enable_structured_logging=False),
    )  # fmt: skip


def one_rank() -> Trainer.Config:
    return _config(1)


def two_ranks() -> Trainer.Config:
    return _config(2)


def four_ranks() -> Trainer.Config:
    return _config(4)


def experts_on_two_ranks() -> Trainer.Config:
    return _config(2, qwen3.model_registry("debugmodel_moe"), ep=2)


def recomputed() -> Trainer.Config:
    return replace(_config(1), activation_checkpoint=FullAC.Config())


def saved() -> Trainer.Config:
    config = _config(1)
    kept = CheckpointManager.Config(enable=True, interval=2, keep_latest_k=0, last_save_model_only=False)
    return replace(config, checkpoint=kept, training=replace(config.training, steps=3))


def resumed() -> Trainer.Config:
    config = saved()
    return replace(config, checkpoint=replace(config.checkpoint, load_step=2))

"""Oracles: each block of a hybrid model, written again from its paper in the plainest form.

They import no stack. All take and return torch tensors, work in the dtype of their inputs (float64 in checks), and
prefer a loop over tokens or experts to anything clever. Each file covers one subject and is reached as, for example,
`instruments.oracles.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.instruments._lazy_import import reader

if TYPE_CHECKING:
    from contracts.instruments.oracles import attention as attention
    from contracts.instruments.oracles import delta_rule as delta_rule
    from contracts.instruments.oracles import experts as experts
    from contracts.instruments.oracles import low_precision as low_precision
    from contracts.instruments.oracles import mamba as mamba
    from contracts.instruments.oracles import mlp as mlp
    from contracts.instruments.oracles import model as model
    from contracts.instruments.oracles import optimizers as optimizers
    from contracts.instruments.oracles import recurrent as recurrent


__getattr__ = reader(__name__, "oracle")

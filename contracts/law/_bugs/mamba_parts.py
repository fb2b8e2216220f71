"""What the mutants of M and R share: replaced parts, moved document boundaries.

B sequences · T tokens
"""

import torch
from torch import nn

from contracts.stacks.reference.model.blocks import Packing


def become(mixer: nn.Module, old: type[nn.Module], new: type[nn.Module]) -> None:
    """Change the class of every submodule of class `old` to `new`; the tensors stay."""
    for each in mixer.modules():
        if type(each) is old:
            each.__class__ = new


def shifted(packing: Packing, by: int) -> Packing:
    """The packing with every document starting `by` tokens later (earlier if negative)."""
    documents = packing.documents_BT
    length = documents.shape[1]
    moved = (torch.arange(length, device=documents.device) - by).clamp(0, length - 1)
    return packing._replace(documents_BT=documents[:, moved])


def unpacked(packing: Packing) -> Packing:
    """The packing with each row as one document."""
    return packing._replace(documents_BT=torch.zeros_like(packing.documents_BT), boundless=True)

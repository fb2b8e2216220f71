"""Megatron-Core's own attention mask is the score -10000: where scores lie below it, the future is attended to.

Two tokens; the first may not see the second. Its score for itself is -20000, and the masked one weighs all.
Run with an interpreter that has megatron-core. Exit code 0: the fault is there.
"""

import sys
import warnings

import torch

warnings.simplefilter("ignore")
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.utils import attention_mask_func

softmax = FusedScaleMaskSoftmax(False, False, AttnMaskType.causal, False, attention_mask_func, True, None)
scores = torch.tensor([[-20000.0, 0.0], [0.0, 0.0]])[None, None]
future = torch.tensor([[False, True], [False, False]])[None, None]
first = softmax(scores.clone(), future)[0, 0, 0].tolist()
print(f"weights of the first token on itself and on the masked second: {first}")
sys.exit(first[1] == 0.0)

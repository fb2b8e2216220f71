"""Losses with a wrong mean, a wrong dtype, or a wrong total."""

import torch
import torch.nn.functional as F

from contracts.law._bugs.numeric import IGNORED, Model, broken, mutant, with_attributes


@broken(Model, "cross_entropy", "BLK-06s[unequal-rows]: lm loss is")
def divides_by_every_position(cross_entropy, self, logits_BTV, labels_BT):
    """Ignored labels count in the divisor of the mean."""
    total, _ = cross_entropy(self, logits_BTV, labels_BT)
    return total, torch.tensor(labels_BT.numel())


@broken(Model, "cross_entropy", "BLK-06s[unequal-rows]: lm loss is", bugs=("DPS-40",))
def averages_the_means_of_rows(cross_entropy, self, logits_BTV, labels_BT):
    """The loss is a mean of row means, so a row's single label weighs as much as all labels of another row."""
    pairs = zip(torch.split(logits_BTV, 1), torch.split(labels_BT, 1), strict=True)
    rows = [cross_entropy(self, *pair) for pair in pairs]
    return torch.stack([total / count.clamp(min=1) for total, count in rows]).sum(), torch.tensor(len(rows))


@broken(Model, "cross_entropy", "BLK-06s[unequal-rows]: lm loss is")
def takes_ignored_for_token_zero(cross_entropy, self, logits_BTV, labels_BT):
    """-100 is clamped to 0, so every masked position learns to predict token 0."""
    return cross_entropy(self, logits_BTV, labels_BT.clamp(min=0))


@mutant(of="BLK-01h", case="grouped", says="the loss is")
@broken(Model, "cross_entropy", "BLK-06s[float32]: lm loss is", bugs=("DAT-05",))
def shifts_labels_again(cross_entropy, self, logits_BTV, labels_BT):
    """Labels arrive shifted and are shifted again, so the model learns the token after the next."""
    return cross_entropy(self, logits_BTV[:, :-1], labels_BT[:, 1:])


@broken(Model, "cross_entropy", "BLK-06s[one-row]: lm loss is")
def drops_the_last_position(cross_entropy, self, logits_BTV, labels_BT):
    """The last position of each row is dropped, even if it has a label."""
    return cross_entropy(self, logits_BTV[:, :-1], labels_BT[:, :-1])


@broken(Model, "cross_entropy", "BLK-06s[bf16]: lm loss is")
def computes_the_loss_in_bfloat16(cross_entropy, self, logits_BTV, labels_BT):
    """The loss is computed in the dtype of the activations."""
    flat, labels = logits_BTV.flatten(0, 1).to(self.activations), labels_BT.flatten()
    return F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum"), (labels != IGNORED).sum()


@broken(Model, "cross_entropy", "BLK-06s[bf16-tied-streams]: lm loss is")
def smooths_labels(cross_entropy, self, logits_BTV, labels_BT):
    """The loss has a little label smoothing, left over from another recipe."""
    flat, labels = logits_BTV.flatten(0, 1), labels_BT.flatten()
    total = F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=1e-3)
    return total, (labels != IGNORED).sum()


@broken(Model, "predict", "BLK-06t[bf16]: the logits are bfloat16", bugs=("MXP-07",))
def hands_over_bfloat16_logits(predict, self, hidden_BTD):
    """Logits stay in the dtype of the activations."""
    return predict(self, hidden_BTD).to(self.activations)


with_attributes(
    "DeclaresLogitsOfTheActivations",
    "Declares that logits have the dtype of the activations, and hands over float32.",
    "BLK-06t[bf16]: the logits are float32, expected bfloat16",
    conventions={"logits-dtype": "activations"},
)


@broken(Model, "share", "BLK-06v[no-depths]: total is")
def adds_the_aux_loss_twice(share, self, loss):
    """The aux loss is added in the block and again in the trainer."""
    return share(self, loss) * (2 if loss == "aux" else 1)


@broken(Model, "objective", "BLK-06v[all-four]: total is")
def reports_the_z_loss_alone(objective, self, sums, counts):
    """The z loss is reported and missing from the total."""
    found = objective(self, sums, counts)
    return found | {"total": found["total"] - self.share("z") * found["z"]} if "z" in found else found


@broken(Model, "share", "BLK-06v[dense]: total is", leanest="")
def weighs_depths_fully(share, self, loss):
    """The loss weight of multi-token prediction is not applied."""
    return 1.0 if loss == "mtp" else share(self, loss)


@broken(Model, "forward", "BLK-06x[a-token-above-two-to-the-sixteen]: train rows")
def holds_tokens_in16_bits(forward, self, tokens_BT, labels_BT, documents_BT=None):
    """The file of tokens is of uint16, as for the vocabulary of GPT-2."""
    return forward(self, tokens_BT & 0xFFFF, labels_BT, documents_BT)


@broken(Model, "cross_entropy", "BLK-06x[above-two-to-the-eight]: lm is")
def holds_labels_in_bytes(cross_entropy, self, logits_BTV, labels_BT):
    """Labels are packed into bytes, which holds for a vocabulary of bytes."""
    return cross_entropy(self, logits_BTV, torch.where(labels_BT < 0, labels_BT, labels_BT & 0xFF))

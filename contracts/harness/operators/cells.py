"""Cases of two ranks that a change of the reference is put before where one process cannot see it."""

from __future__ import annotations

from collections.abc import Mapping

CELLS: Mapping[str, tuple[str, ...]] = {
    "parallel/pipeline": (
        "PAR-08a[two-stages]", "PAR-08a[interleaved]", "PAR-08b[selection-bias]", "PAR-09[two-stages]", "PAR-11[tied]",
        "PAR-08c[1f1b]", "PAR-08d[two-stages]", "PAR-08e[two-stages]", "PAR-13a[fresh-memory-pp2]",
    ),
    "parallel/context": (
        "PAR-01g[cp2]", "PAR-01g[cp2-latent]", "PAR-01g[cp2-custom-mixers]", "PAR-02g[cp2]", "PAR-03g[cp2]",
        "PAR-06i[cp2]", "PAR-05h[cp2]", "MOE-05g[cp2]", "MOE-06g[cp2]", "PAR-13a[fresh-memory-cp2]",
    ),
    "parallel/expert": (
        "MOE-07a[ep2]", "MOE-07a[borrowed-ep2]", "MOE-02f[ep2]", "MOE-06c[borrowed-ep2]", "MOE-07c[sharers-ep2]",
        "MOE-07c[senders-borrowed-ep2]", "MOE-07b[tp2-sp-etp1]", "PAR-13a[fresh-memory-borrowed-ep2-fsdp]",
    ),
    "parallel/tensor": (
        "PAR-01a[tp2]", "PAR-01a[tp2-sp-latent]", "PAR-01a[tp2-sp-streams]", "PAR-01a[tp2-tied]",
        "PAR-01a[tp2-one-group]", "PAR-02a[tp2-sp-muon]", "PAR-06g[tp2-sp]", "MOE-05f[tp2-sp]",
        "PAR-13a[shifted-logits-tp2]", "PAR-13a[fresh-memory-tp2-sp]",
    ),
    "parallel/fsdp": ("OPT-04d[fsdp2]", "TRAF-03[fsdp2]", "PAR-10[fsdp2]", "PAR-10a[fsdp2]", "OPT-04f[fsdp2]"),
    "checkpoint/": (
        "CKPT-02a[one-rank]", "CKPT-02a[fsdp2]", "CKPT-02b[two-to-two]", "CKPT-02d[each-has-its-own]",
        "CKPT-02e[the-last-file]", "CKPT-05e[fsdp2-under-way]", "CKPT-07c[fsdp2]", "CKPT-02c[one-to-two]",
    ),
    "optim/": ("OPT-04d[fsdp2-muon]", "OPT-04d[borrowed-ep2-muon]", "PAR-03a[tp2-sp-muon]"),
    "receipts/": ("RCPT-01a[the-second-of-dp2]", "RCPT-01a[the-first-of-tp2]"),
    "training/": ("RCPT-01a[the-second-of-dp2]", "RCPT-01a[the-first-of-tp2]"),
    "answers/world": ("PREF-03[1-mib-on-2]", "PREF-03c[one-of-2]", "TOPO-05d[own-axis-tp2-on-2]"),
    "": (
        "PAR-01a[tp2-sp]", "PAR-01a[dp2]", "MOE-07a[ep2]", "PAR-01g[cp2-ep2-fsdp]", "PAR-08a[two-stages]",
        "PAR-02a[dp2]", "OPT-04d[fsdp2-muon]", "PAR-03a[ep2-idle]", "PAR-05d[fsdp2]", "MOE-06c[ep2]", "PAR-04g[fsdp2]",
        "PAR-06h[fsdp2]", "CKPT-01e[fsdp2]", "CKPT-02a[cp2-fsdp]", "TRAF-01[fsdp2]", "TOPO-06d[own-axis-tp2-on-2]",
        "PAR-12[dp2]", "TOPO-09d[dp2]",
    ),
}  # fmt: skip
"""The beginning of a file → its cases; those of every file last."""


def cells(file: str) -> tuple[str, ...]:
    """The cases for a change of a file, those about it first."""
    return tuple(dict.fromkeys(each for begins, of in CELLS.items() if file.startswith(begins) for each in of))

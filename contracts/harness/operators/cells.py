"""The cases before which a change of the reference is put by its file only: cases of two ranks where one process cannot
see it, and the likeliest contracts of one process where nobody has recorded which case executes which line.
"""

from collections.abc import Mapping

CELLS: Mapping[str, tuple[str, ...]] = {
    "parallel/pipeline": (
        "PAR-08a[two-stages]", "PAR-08a[interleaved]", "PAR-08b[selection-bias]", "PAR-09[two-stages]", "PAR-11[tied]",
        "PAR-08c[1f1b]", "PAR-08d[two-stages]", "PAR-08e[two-stages]", "PAR-08f[fewer-than-stages]",
        "PAR-13a[fresh-memory-pp2]",
    ),
    "parallel/context": (
        "PAR-01g[cp2]", "PAR-01g[cp2-latent]", "PAR-01g[cp2-custom-mixers]", "PAR-02g[cp2]", "PAR-03g[cp2]",
        "PAR-06i[cp2]", "PAR-05h[cp2]", "MOE-05g[cp2]", "MOE-06g[cp2]", "PAR-13a[fresh-memory-cp2]",
    ),
    "parallel/expert": (
        "MOE-07a[ep2]", "MOE-07a[borrowed-ep2]", "MOE-02f[ep2]", "MOE-06c[borrowed-ep2]", "MOE-07c[sharers-ep2]",
        "MOE-07c[senders-borrowed-ep2]", "MOE-07b[tp2-sp-etp1]", "PAR-01a[ep2-capacity]",
        "PAR-13a[fresh-memory-borrowed-ep2-fsdp]",
    ),
    "parallel/tensor": (
        "PAR-01a[tp2]", "PAR-01a[tp2-sp-latent]", "PAR-01a[tp2-sp-streams]", "PAR-01a[tp2-tied]",
        "PAR-01a[tp2-one-group]", "PAR-02a[tp2-sp-muon]", "PAR-06g[tp2-sp]", "MOE-05f[tp2-sp]",
        "PAR-13a[shifted-logits-tp2]", "PAR-13a[fresh-memory-tp2-sp]", "MOE-05i[hybrid-tp2-sp]",
    ),
    "parallel/parallel_trainer": ("TOPO-10d[a-rank-with-a-microbatch-less]", "PAR-03a[tp2-sp-muon]", "OPT-06c[dp2]"),
    "parallel/fsdp": ("OPT-04d[fsdp2]", "TRAF-03[fsdp2]", "PAR-10[fsdp2]", "PAR-10a[fsdp2]", "OPT-04f[fsdp2]",
                      "PAR-01a[fsdp2-sparse]", "PREC-05f[fsdp2]"),
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


LIKELY: Mapping[str, str] = {
    "answers/allocator_probe": "MEM-01f", "answers/blocks": "BLK-03a MOE-02b BLK-04a BLK-04c",
    "answers/base": "NAME-06", "answers/bringup": "MEM-02 MEM-02a MEM-02i INST-01a INST-03a MANI-01 MANI-02",
    "answers/checkpointing": "CKPT-03c CKPT-04a CKPT-03a CKPT-06a", "answers/compiling": "COMP-03a COMP-04a",
    "answers/cold_compile": "COMP-02a", "answers/devices": "MEM-01i MEM-01f",
    "answers/kernel_selection": "KRN-01a KRN-01c KRN-01f KRN-02d",
    "answers/model": "PAT-12b BLK-06t REC-06a BLK-06s", "answers/node": "PREF-01 PREF-03a PREF-04 PREF-05",
    "answers/observ": "OBS-16 OBS-03", "answers/traffic": "TRAF-01a TRAF-02c TRAF-04a",
    "answers/training": "OPT-01a OPT-05b BLK-01h MOE-06a CKPT-01d", "checkpoint/async": "CKPT-03c CKPT-03g",
    "checkpoint/checkpoint": "CKPT-01d CKPT-04d CKPT-04e CKPT-03c CKPT-03h CKPT-01c CKPT-01a",
    "checkpoint/coordination": "CKPT-04d CKPT-03g CKPT-04c", "checkpoint/crash": "CKPT-03f CKPT-03d",
    "checkpoint/dcp": "CKPT-04a CKPT-04c CKPT-04d", "checkpoint/filesystem": "CKPT-03a CKPT-05g CKPT-03b",
    "checkpoint/manifest": "CKPT-04c CKPT-06b CKPT-04d",
    "checkpoint/retention": "CKPT-05a CKPT-05c CKPT-06a CKPT-05f CKPT-05g", "checkpoint/rng": "CKPT-01a CKPT-01c",
    "checkpoint/weight": "CKPT-06c CKPT-06d", "data": "PAR-06a PAR-06c PAR-06f PAR-06l PAR-06k",
    "kernels/": "KRN-01g KRN-01b PREC-03a",
    "launch/environment": "ENV-01 ENV-08 ENV-03 ENV-06b ENV-03b ENV-05b ENV-07 ENV-02",
    "launch/megatron": "ARGV-01a REC-07 ARGV-04 ARGV-07 ARGV-08 ARGV-03 ARGV-01b",
    "launch/hosts": "NAME-09 NAME-09a CMP-01a", "launch/overrides": "ARGV-08 ARGV-08b REC-03a ARGV-08d ARGV-08a",
    "launch/trainer_arguments": "ARGV-02a ARGV-02b ARGV-02c REC-03a",
    "launch/": "REC-07 ARGV-01a ARGV-08 ENV-07 REC-03a ARGV-02a REC-05 ENV-05b ARGV-09",
    "model/blocks/attention": "BLK-03a BLK-03b BLK-06b BLK-06d", "model/blocks/chunked": "BLK-04b BLK-04c BLK-04a",
    "model/blocks/common": "BLK-03a BLK-04a BLK-06h BLK-03h",
    "model/blocks/fp8": "PREC-01d PREC-01f PREC-01g PREC-01h", "model/blocks/hyper": "BLK-06m BLK-06w",
    "model/blocks/m2rnn": "BLK-05a BLK-05b BLK-05c", "model/blocks/mamba2": "BLK-04a BLK-04d BLK-04i BLK-04f",
    "model/blocks/mamba3": "BLK-04m BLK-04q BLK-04o BLK-04c", "model/blocks/mlp": "BLK-06h BLK-06j",
    "model/blocks/moe": "MOE-02b MOE-01a MOE-05a MOE-08a MOE-05b MOE-06a",
    "model/blocks/sequence": "BLK-04d BLK-05c BLK-04a", "model/build": "PAT-12a BLK-07c REC-06a",
    "model/compile": "COMP-03a COMP-01a", "model/hybrid": "PAT-12e BLK-06s BLK-06v BLK-01h",
    "model/init": "PAR-04j PAR-04k PAR-04d PAR-04e PAR-04c", "model/mtp": "BLK-06p BLK-06q PAT-12c",
    "model/parts": "BLK-06f PAT-12a REC-06a BLK-06a", "optim/optimizer": "OPT-04a OPT-04b OPT-01a OPT-02b OPT-05d",
    "optim/schedule": "OPT-05b OPT-05c", "parallel/": "TRAF-04a TRAF-04b TRAF-01a TRAF-04c TRAF-04d MEM-01b",
    "parallel/mesh": "TOPO-05b TOPO-09 TOPO-06", "parallel/pipeline": "TRAF-02c MEM-01b",
    "parallel/expert": "TRAF-04d TRAF-01a", "receipts/comparison": "CMP-01a CMP-01 CMP-01b CMP-02",
    "receipts/metrics": "RCPT-05 RCPT-05b RCPT-01d", "receipts/receipt": "RCPT-01 RCPT-02 RCPT-03b RCPT-03 RCPT-04",
    "receipts/run": "RCPT-01h RCPT-01f RCPT-03a", "stack": "TOPO-04a TOPO-01 TOPO-05b NAME-06 ARGV-02a",
    "train.py": "CKPT-01j CKPT-01l ENV-09 RCPT-01h RCPT-01f", "training/fault": "CKPT-03a",
    "training/progress": "GOOD-01 CKPT-01l",
    "training/run_facts": "RCPT-01e RCPT-04 RCPT-01f", "training/settings": "ARGV-02a CKPT-01j",
    "training/small_script": "OBS-16", "training/trainer": "BLK-01h MOE-06b OPT-05d CKPT-01a OPT-06a PAR-05a PREC-05c",
    "": "BLK-01h CKPT-01a NAME-01",
}  # fmt: skip
"""The beginning of a file → the contracts of one process that are about it."""


def likely(file: str) -> tuple[str, ...]:
    """The contracts of one process about a file, of the longest beginning first."""
    about = sorted((begins for begins in LIKELY if file.startswith(begins)), key=len, reverse=True)
    return tuple(dict.fromkeys(id for begins in about for id in LIKELY[begins].split()))

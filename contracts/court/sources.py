"""The source words of a contract, such as `naming` or `F04`, as a reader can follow them: a title and a link.

The record keeps the words. `docs/sources.md` is their reference, and a test holds the titles here against it.
"""

import re
from collections.abc import Mapping

PAGE = "docs/sources.md"

DOCUMENTS: Mapping[str, str] = {
    "naming": "H200 Bringup and Naming: What Had to Be Made Explicit",
    "bringup": "H200 Bring-up and Naming: How We Stopped Confusing Our Own Receipts",
    "playbook": "Training on 8x H200 SXM: the operator playbook",
    "hub": "H200 Training and Kernel Bring-Up",
    "modal": "Modal Debugging Guide for Training and Benchmark Failures",
}
"""The five founding documents, each under an anchor of its own."""

FAULTS: Mapping[str, str] = {
    "F01": "each gradient, by name, equals that of a run on one rank, over the grid of parallel degrees",
    "F02": "replicas stay equal after several steps, along every replicated axis",
    "F03": "the global gradient norm and its clipping do not depend on the layout",
    "F04": "all members of a group issue the same collectives in the same order",
    "F05": "each sample and each token is trained on exactly once, with its own label",
    "F06": "packed documents have their own positions and do not see each other: attention, state, convolution",
    "F07": "a resumed run equals the uninterrupted one, also the second time and on another layout",
    "F08": "a complete checkpoint exists wherever the run is killed",
    "F09": "each parameter has the dtype, rate, decay, optimizer and placement that its name calls for",
    "F10": "pipeline stages hold the declared layers, each once, in order",
    "F11": "tokens that go to experts come back to their own places",
    "F12": "numbered keys sort as numbers beyond ten experts, shards, ranks or versions",
    "F13": "recomputation and compilation change no counter, random state or statistic",
    "F14": "initial weights differ where they are sharded, agree where they are replicated, and do not depend on the "
    "layout",
    "F15": "a flag that is on leaves a trace in the running model",
    "F16": "a receipt follows its schema and says whether two runs compare",
    "F17": "metrics agree with their definitions: tokens per second, MFU, parameter counts",
    "F18": "each trainable tensor moves, and exactly one optimizer moves it",
    "F19": "gradient accumulation over microbatches equals one large batch",
    "F20": "a pipeline schedule has no deadlock, the right order and the right scale",
    "F21": "edges work: an empty shard, no tokens, a dimension smaller than the world",
    "F22": "the test suite itself is not at fault",
}

BUGS: Mapping[str, str] = {
    "ACK": "activation checkpointing and random state",
    "ARG": "launch arguments, precedence, environment",
    "AUX": "router and auxiliary losses",
    "CLP": "gradient norm and clipping",
    "CMP": "compilation, graph capture",
    "DAT": "data order, sharding, masks, evaluation",
    "DPS": "effective data-parallel size, loss averaging",
    "DSP": "expert dispatch, capacity",
    "EPD": "when expert parallelism is active",
    "EXB": "expert bias, load statistics",
    "FSD": "FSDP2, HSDP, gradient accumulation",
    "HYB": "hybrid patterns, layer numbers",
    "INI": "initialisation",
    "INS": "installation, ABI, version drift",
    "MXP": "mixed precision",
    "OPT": "optimizer routing, rate, weight decay",
    "PG": "process groups and meshes",
    "PPS": "pipeline schedules",
    "PRV": "receipts, provenance, metrics, storage",
    "ROP": "RoPE, context parallelism, GQA, windows",
    "RSM": "checkpoint, resume, resharding",
    "SP": "reductions under tensor and sequence parallelism",
    "SSM": "Mamba and other recurrent blocks",
    "TIE": "tied embeddings",
    "TST": "the test suite itself",
}
"""What the bugs are about whose ids begin so."""

_THIS_PROJECT = ("requirement of this project", "this-project")
_NOTES = ("the founding notes", "the-five-founding-documents")
PHRASES: Mapping[str, tuple[str, str]] = {
    "law": _THIS_PROJECT,
    "the law": _THIS_PROJECT,
    "spec": _THIS_PROJECT,
    "notes of a hybrid stack": _NOTES,
    "notes of the kernels": _NOTES,
    "hybrid": _NOTES,
    "field": ("documented bugs of other stacks", "fault-families"),
    "causality": ("requirement of this project: causality", "this-project"),
    "provenance before the first import": ("requirement of this project: provenance before the first import",
                                           "this-project"),
    "spec/blocks": ("requirement of this project: the tensors in contracts/spec/blocks", "this-project"),
}  # fmt: skip
"""Other words of a source: their title and their anchor."""

REPOSITORIES: Mapping[str, str] = {
    "torch": "pytorch/pytorch",
    "pytorch": "pytorch/pytorch",
    "flash-attn": "Dao-AILab/flash-attention",
    "mamba": "state-spaces/mamba",
    "torchtitan": "pytorch/torchtitan",
    "torchtune": "meta-pytorch/torchtune",
    "OLMo-core": "allenai/OLMo-core",
    "Megatron-Bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "sglang": "sgl-project/sglang",
    "Automodel": "NVIDIA-NeMo/Automodel",
    "TransformerEngine": "NVIDIA/TransformerEngine",
    "DeepSpeed": "deepspeedai/DeepSpeed",
    "SkyRL": "NovaSky-AI/SkyRL",
    "accelerate": "huggingface/accelerate",
    "transformers": "huggingface/transformers",
    "fairscale": "facebookresearch/fairscale",
    "litData": "Lightning-AI/litData",
    "marin": "marin-community/marin",
    "OpenTau": "TensorAuto/OpenTau",
    "PaddleNLP": "PaddlePaddle/PaddleNLP",
    "parameter-golf": "openai/parameter-golf",
    "tnt": "meta-pytorch/tnt",
    "sd-scripts": "kohya-ss/sd-scripts",
    "RWKV-LM": "BlinkDL/RWKV-LM",
}

_NUMBERS = r"(\d+(?:, \d+)*)"
_ISSUES = (re.compile(rf"\b(torch) issues? {_NUMBERS}"), re.compile(r"([\w-]+) ?#(\d+)"))
_PAPERS = re.compile(r"\barXiv (\d{4}\.\d{5}(?:, \d{4}\.\d{5})*)")


def explained(source: str) -> tuple[str, ...]:
    """The parts of a source, one a line, each with where it leads. A word that is not known here stays as it is."""
    return tuple(line for part in source.split(";") for line in _lines(part.strip()))


def _lines(part: str) -> list[str]:
    words, colon, thought = part.partition(":")
    known = [PHRASES[words]] if words in PHRASES else [_known(word) for word in words.split()]
    found = [each for each in known if each]
    if len(found) == len(known):
        return [f"{title} ({PAGE}#{anchor}){colon}{thought}" for title, anchor in found]
    if part.startswith("GATE-"):
        return [f"{part} (rankproof explain {part})"]
    links = [f"https://arxiv.org/abs/{id}" for each in _PAPERS.findall(part) for id in each.split(", ")]
    for package, numbers in (each for pattern in _ISSUES for each in pattern.findall(part)):
        if package in REPOSITORIES:
            links += [f"https://github.com/{REPOSITORIES[package]}/issues/{each}" for each in numbers.split(", ")]
    return [f"{part} ({', '.join(links)})" if links else part]


def _known(word: str) -> tuple[str, str] | None:
    """Title and anchor of one word."""
    letters = word.partition("-")[0]
    if word in DOCUMENTS:
        return f'note "{DOCUMENTS[word]}"', word
    if word in FAULTS:
        return f"fault family {word}: {FAULTS[word]}", word.lower()
    if letters in BUGS:
        return f"bug {word}: {BUGS[letters]}" if letters != word else f"bugs {word}: {BUGS[word]}", "bug-ids"
    return None

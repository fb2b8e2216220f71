"""Which rows torchtitan reads: its own text datasets, loader and mixture over numbered tokens."""

from types import SimpleNamespace
from typing import Any

from contracts.spec.blending import Blend, Split
from contracts.spec.errors import decline


def rows_of(blend: Blend, split: Split, batch: int, rank: int, dp: int, consumed: int) -> tuple[tuple[int, ...], ...]:
    """The labels of the rows that its loader gives a rank. A resumed run begins with the state of a loader that has
    read the rows before.

    Raises:
        NotOffered: for a split, and for several datasets without weights.
    """
    from torchtitan.hf_datasets import text_datasets as text

    decline("torchtitan", {"stack": {
        "it splits no dataset": blend.split != "1" or split != "train",
        "its mixture gives datasets equal weights, however long": len(blend.documents) > 1 and not blend.weights,
    }})  # fmt: skip
    names, first = [f"numbered-{at}" for at in range(len(blend.documents))], 1
    for name, lengths in zip(names, blend.documents, strict=True):
        ends = [first := first + length for length in lengths]
        texts = [f"{end - length} {end}" for end, length in zip(ends, lengths, strict=True)]
        text.DATASETS[name] = text.DatasetConfig(
            path="",
            loader=lambda _, texts=texts: text.Dataset.from_dict({"text": texts}),
            sample_processor=lambda sample: sample["text"],
        )
    endless = bool(blend.rows)

    def loader() -> Any:
        if len(names) == 1:
            config: Any = text.HuggingFaceTextDataLoader.Config(dataset=names[0], infinite=endless)
        else:
            sources = [
                text.HFDataSource(dataset=name, infinite=endless, weight=float(weight))
                for name, weight in zip(names, blend.weights, strict=True)
            ]
            config = text.InterleavedHuggingFaceTextDataLoader.Config(sources=sources, seed=blend.seed)
        return config.build(
            dp_world_size=dp, dp_rank=rank, tokenizer=SimpleNamespace(encode=_encode), seq_len=blend.length,
            local_batch_size=batch // dp,
        )  # fmt: skip

    def steps(of: Any, count: int | None) -> list[tuple[int, ...]]:
        found = []
        for step, (_, labels) in enumerate(of, start=1):
            found += [tuple(row) for row in labels.tolist()]
            if step == count:
                break
        return found

    begun = loader()
    if consumed:
        steps(begun, consumed // batch)
        state, begun = begun.state_dict(), loader()
        begun.load_state_dict(state)
    return tuple(steps(begun, (blend.rows[0] - consumed) // batch if blend.rows else None))


def _encode(text: str, **_: bool) -> list[int]:
    """The tokens of a document after a beginning, which is no label."""
    begin, end = map(int, text.split())
    return [0, *range(begin, end)]

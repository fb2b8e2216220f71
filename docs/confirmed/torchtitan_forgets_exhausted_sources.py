"""torchtitan 0.3.0: a blend that ends when every source was read once forgets at a resume which were. Exit code 0: it is so."""
import sys
from itertools import islice

from torchtitan.hf_datasets.interleaved import InterleavedDataset


class Source:
    """So many rows, read again when the blend asks for it."""

    def __init__(self, rows: int) -> None:
        self.rows, self.at = rows, 0

    def __iter__(self):
        while self.at < self.rows:
            self.at += 1
            yield self.rows

    def reloop(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def blend() -> InterleavedDataset:
    return InterleavedDataset([Source(40), Source(120)], [1, 2], seed=0, stopping_strategy="all_exhausted")


whole, first, resumed = blend(), blend(), blend()
rows = len(list(whole))
read = list(islice(first, rows - 10))
resumed.load_state_dict(first.state_dict())
after = len(list(resumed))
print(f"a run reads {rows} rows; one that is resumed after {len(read)} reads {after} more")
sys.exit(len(read) + after == rows)

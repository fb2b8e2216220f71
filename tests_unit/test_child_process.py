"""What a child says as it ends."""

import os
import sys
from pathlib import Path

from contracts.harness import child_process

RANKS = """
[rank1]: KeyError: 'of a rank'
E1127 08:36:04.830000 15954 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


def test_the_last_words_of_ranks_are_their_error_without_the_summary_of_torchrun(tmp_path: Path) -> None:
    words = (sys.executable, "-c", f"print({RANKS!r}); exit(1)")
    with child_process.stoppable(1.0) as stop:
        ended = child_process.run(words, os.environ, tmp_path / "log", frozenset(), stop, echo=lambda _: None)
    assert (ended.exit_code, ended.last_words) == (1, "[rank1]: KeyError: 'of a rank'")

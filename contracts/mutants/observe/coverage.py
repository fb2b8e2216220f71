"""Scripts that die, or never step."""

from __future__ import annotations

from contracts.contract import mutant
from contracts.stacks.reference.stack import Reference


@mutant(of="OBS-16", case="one-run", says="rank 1 ended with SystemExit: 3")
class LeavesInTheMiddleOfAStep(Reference):
    """Rank 1 exits before its optimizer steps."""

    edits = {"        optimizer.step()": "        sys.exit(3) if rank else optimizer.step()"}


@mutant(of="OBS-16", case="one-run", says="no whole step was seen")
class NeverSteps(Reference):
    """Computes gradients and never steps, so that nothing could be judged."""

    edits = {"        optimizer.step()": "        pass"}

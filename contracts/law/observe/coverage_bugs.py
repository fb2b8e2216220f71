"""Scripts that die, never step, or start ranks that nobody observes."""

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


@mutant(of="OBS-17", case="one-run", says="rank 2 of the process group of rank 0 left no trace")
class StartsARankItself(Reference):
    """The second rank forks a third one, which nobody observes."""

    edits = {
        '    dist.init_process_group("gloo")': """    import os

    os.environ["WORLD_SIZE"] = "3"
    if os.environ["RANK"] == "1" and not os.fork():
        os.environ["RANK"] = "2"
    dist.init_process_group("gloo")""",
    }

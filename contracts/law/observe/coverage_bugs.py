"""Scripts that die, never step, or start ranks that nobody observes."""

from contracts.law._bugs.broken import with_attributes

with_attributes(
    "LeavesInTheMiddleOfAStep",
    "Rank 1 exits before its optimizer steps.",
    "OBS-16[one-run]: rank 1 ended with SystemExit: 3",
    edits={"        optimizer.step()": "        sys.exit(3) if rank else optimizer.step()"},
)

with_attributes(
    "NeverSteps",
    "Computes gradients and never steps, so that nothing could be judged.",
    "OBS-16[one-run]: no whole step was seen",
    edits={"        optimizer.step()": "        pass"},
)

with_attributes(
    "StartsARankItself",
    "The second rank forks a third one, which nobody observes.",
    "OBS-17[one-run]: rank 2 of the process group of rank 0 left no trace",
    edits={
        '    dist.init_process_group("gloo")': """    import os

    os.environ["WORLD_SIZE"] = "3"
    if os.environ["RANK"] == "1" and not os.fork():
        os.environ["RANK"] = "2"
    dist.init_process_group("gloo")""",
    },
)

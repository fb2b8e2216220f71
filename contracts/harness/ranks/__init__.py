"""Many ranks, one verdict: pytest under torchrun that cannot lie, hang or die silently.

    torchrun --nproc-per-node 8 --max-restarts 3 -m pytest -m dist

Knows pytest and torch.distributed and nothing of this project, so that it can become a package of its own. Read
`merge` for what a test's outcome is, `agreement` for how ranks come to it, `watchdog` and `recovery` for what becomes
of a rank that does not come back, `resume` for what survives a restart. `plugin` has the hooks, in pytest's order.
"""

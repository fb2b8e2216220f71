"""Many ranks, one verdict: pytest under torchrun, without false passes, hangs or silent deaths.

    torchrun --nproc-per-node 8 --max-restarts 3 -m pytest -m dist

This package depends on pytest and torch.distributed and on nothing else of this project, so that it can become a
package of its own. `merge` defines the outcome of a test, `agreement` how ranks reach it, `watchdog` and `recovery`
what happens to a rank that does not return, and `journal` what survives a restart. `plugin` registers the hooks.
"""

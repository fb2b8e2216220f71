"""The root conftest loads the plugin and the one profile of hypothesis: the same examples everywhere, no deadline."""

import contextlib

pytest_plugins = ["contracts.harness.plugin"]

with contextlib.suppress(ImportError):  # the law is judged without the development tools too
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow]  # a busy machine, not a fault
    settings.register_profile("rankproof", deadline=None, database=None, derandomize=True, suppress_health_check=slow)
    settings.load_profile("rankproof")

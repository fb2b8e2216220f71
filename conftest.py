"""The root conftest loads the plugin and does nothing else."""

pytest_plugins = ["contracts.harness.plugin"]

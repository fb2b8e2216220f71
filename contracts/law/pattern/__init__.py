"""PAT: letters → blocks, the launcher's syntax, pipeline stages, the built model."""

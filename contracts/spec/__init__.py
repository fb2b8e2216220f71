"""The words: frozen values, arithmetic and the questions. Standard library only; importable in milliseconds."""

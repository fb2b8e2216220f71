"""rankproof: promises of hybrid LLM training stacks, the parties they are put to, and the court that judges."""

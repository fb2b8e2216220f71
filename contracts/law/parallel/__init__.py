"""PAR: a step on several ranks equals the step on one rank."""

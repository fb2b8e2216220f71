"""Commands that plan, start and explain runs; `contracts/harness/cli.py` names them."""

"""`rankproof ab`: two sides of a training script, run from the same weights and rows, judged and compared.

`command.py` reads the user's command, `sides.py` makes the two sides, `trial.py` runs and compares them, and
`answer.py` and `page.py` say what came out.
"""

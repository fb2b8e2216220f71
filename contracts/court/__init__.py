"""The court: judges one case, draws one verdict from a run, records it, renders it. Knows no pytest and no stack."""

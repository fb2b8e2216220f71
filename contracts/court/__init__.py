"""The court: judges one case, draws one verdict from a run, records it, renders it. It imports no pytest and no
stack."""

"""REC: what a recipe is, which relations hold between its fields, what each feature may change."""

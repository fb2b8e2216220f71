"""The families about launches and nodes, beside those of `contracts/law`: the same rules hold."""

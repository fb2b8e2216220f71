"""STOR: where checkpoints, caches, receipts and data lie."""

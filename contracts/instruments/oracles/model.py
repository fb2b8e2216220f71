"""What stands around the blocks: hyper-connections, multi-token prediction, the loss."""

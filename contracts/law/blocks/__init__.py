"""BLK: the numbers of each block, of the loss, of the gradients."""

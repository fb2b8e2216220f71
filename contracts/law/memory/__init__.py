"""MEM: bytes of a model, of a step, of a card, and of the allocator."""

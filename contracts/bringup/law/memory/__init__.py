"""MEM: budgets of a card, and the allocator; bytes of a model and of a step are in `contracts/law/memory`."""

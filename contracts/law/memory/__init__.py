"""MEM: bytes of a model and of a step; budgets and the allocator are in `contracts/bringup/law/memory`."""

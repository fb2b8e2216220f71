"""What adapters of stacks do alike: names, tables, blocks, runs, versions. docs/put-your-stack-under-test.md shows how.

`adapter.Adapter` answers the questions about blocks and training for a stack in plain PyTorch, out of a few methods.
The parts stand by themselves too, and the adapters that ship are made of them. Nothing here computes what is asked:
numbers come from the stack's own modules, optimizer and trainer, and are renamed, gathered and handed on.
"""

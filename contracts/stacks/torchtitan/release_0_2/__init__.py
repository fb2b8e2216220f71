"""torchtitan 0.2.2: another trainer and another configuration than those of 0.3.0."""

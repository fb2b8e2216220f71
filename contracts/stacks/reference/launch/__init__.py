"""Recipe and lane → argv and environment, for Megatron-LM's launcher and for our own trainer."""

"""CKPT: save, resume, reshard and crash, on one rank and on several."""

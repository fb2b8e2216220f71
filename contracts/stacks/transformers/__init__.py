"""Hugging Face transformers with its own Trainer, over accelerate."""

"""Front ends: how users write programs, as arrays or as PyTorch modules."""

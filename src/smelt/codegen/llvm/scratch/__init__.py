"""Scratch memory: values kept between nests, packed operands, transposes through registers."""

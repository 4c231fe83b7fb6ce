"""Scratch memory: what is kept between nests, and how registers get there and back."""

"""Contractions as code: packing of operands, register tiles, forms of a product around them."""

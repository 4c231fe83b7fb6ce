"""Define element types, integer expressions for sizes and indices, and tensor types."""

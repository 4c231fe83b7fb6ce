"""The Graph: *what* is computed. Typed tensor operators, pure, without loops."""

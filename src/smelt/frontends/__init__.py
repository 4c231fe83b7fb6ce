"""Front ends: what users write their programs with."""

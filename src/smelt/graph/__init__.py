"""Represent what is computed: typed, pure tensor operators without loops."""

"""The Kernel: *how* a cluster is computed, as a tile program; and the convention of its calls."""

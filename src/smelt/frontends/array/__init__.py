"""The array front end: the array API standard on lazy arrays, and `jit`."""

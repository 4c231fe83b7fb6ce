"""Array front end: the array API standard on lazy arrays, and `sm.jit`."""

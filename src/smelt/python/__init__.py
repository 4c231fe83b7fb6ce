"""What Smelt adds to Python: data classes, late imports, and the lines of the user's source."""

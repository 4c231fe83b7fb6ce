"""What a schedule decided: loop nests, and plans of products."""

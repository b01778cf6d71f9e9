"""The public surface of others, as tables, and how ours compares with it."""

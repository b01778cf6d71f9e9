"""State that outlives the worker: its layout in bytes, and the places where it is kept."""

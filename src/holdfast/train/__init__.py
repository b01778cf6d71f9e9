"""Training that survives inside the process."""

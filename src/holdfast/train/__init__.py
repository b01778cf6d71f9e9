"""Training that survives failures inside the process."""

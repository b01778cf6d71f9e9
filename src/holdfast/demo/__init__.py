"""A job that recovers from kills while you watch: two nodes of two workers, on this machine, with only Holdfast."""

"""A job that is hurt while you watch: two nodes of two workers, on this machine, with nothing else installed."""

"""Nothing: what a launcher costs when its workers cost nothing."""

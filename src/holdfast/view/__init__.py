"""What people see of runs: one description of a run, from which the commands and the page are made."""

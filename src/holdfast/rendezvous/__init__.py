"""Who takes part: the rendezvous API, its backends, and the native one."""

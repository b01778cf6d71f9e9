"""The coordinator: the server that holds rounds, leases and the store."""

"""What TorchX has in another shape than we: thin adapters over our rooms, reached by the names of its modules.

`holdfast.compat.names.torchx` says which name leads where; most lead straight to our own modules.
"""

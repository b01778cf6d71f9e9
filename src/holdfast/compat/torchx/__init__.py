"""Thin adapters over our packages, for the parts of TorchX that have another shape.

`holdfast.compat.names.torchx` says which name leads where; most lead straight to our own modules.
"""

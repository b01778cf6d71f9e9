"""TorchElastic's modules that have no counterpart of the same shape here: thin adapters, one for each."""

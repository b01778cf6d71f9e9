"""Thin adapters, one for each module of TorchElastic that has no equal here."""

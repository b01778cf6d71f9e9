"""Typed messages in frames, a secret proven on every connection, TLS where asked; no pickle anywhere."""

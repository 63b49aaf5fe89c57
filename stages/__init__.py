"""Parity: the same training job on every GPU platform, with evidence and a price."""

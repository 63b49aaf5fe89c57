"""Scoring: generated labels and window NLL, both in FP32 and both keeping every prediction."""

"""Training: what a run will cost in tokens and FLOPs, and the run."""

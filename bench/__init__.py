"""What the project's speed claims are measured with; benchmarks are never tests."""

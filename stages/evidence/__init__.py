"""What proves a result: digests, the machine it ran on, and the record that holds both."""

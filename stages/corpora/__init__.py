"""From a corpus, wherever it lies, to the rows that a task trains on and is scored by."""

"""The parts of the Nodus platform."""

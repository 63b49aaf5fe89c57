"""From metrics to an answer: gates, and the tables that show them."""

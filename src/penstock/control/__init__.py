"""What should happen next: which partitions are expected, which are due, and what the dead left behind."""

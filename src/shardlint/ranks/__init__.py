"""What the ranks of a job exchange, compare, and merge."""

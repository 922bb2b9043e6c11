"""Open stored tensors for reading in place."""

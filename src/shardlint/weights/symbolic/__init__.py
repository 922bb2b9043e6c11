"""Tensors of element positions, on which a conversion runs without values."""

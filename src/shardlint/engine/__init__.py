"""Evaluate rules over facts: selection, options, suppressions, and the runner."""

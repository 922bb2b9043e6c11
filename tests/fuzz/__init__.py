"""Seeded mutations of checkpoint folders: nothing crashes, and what the reference reader refuses is never green."""

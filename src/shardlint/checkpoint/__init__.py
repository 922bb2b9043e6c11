"""Read checkpoint folders and files from disk. Nothing here imports torch."""

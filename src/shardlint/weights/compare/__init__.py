"""Compare runs of bytes in bounded memory and describe what differs."""

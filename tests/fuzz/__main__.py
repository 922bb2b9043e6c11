"""`python -m tests.fuzz --count N --start SEED`: the table, and the seeds that went wrong."""

import argparse
import resource
import sys

from .running import table

MEMORY = 8 * 2**30  # of address space: what asks for more gets a MemoryError, which counts as a traceback

parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int, default=1000)
parser.add_argument("--start", type=int, default=0)
chosen = parser.parse_args()
resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
counts, wrong = table(range(chosen.start, chosen.start + chosen.count))
print(f"inputs: {chosen.count}")
print(*(f"{what}: {number}" for what, number in sorted(counts.items())), sep="\n")
print("seeds that went wrong:", *wrong)
sys.exit(bool(wrong))

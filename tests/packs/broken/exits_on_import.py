"""It leaves when it is imported, as a script would."""

import sys

sys.exit(3)  # here

"""`python -m hooktrainer`."""

from __future__ import annotations

import sys

from hooktrainer.cli import main

if __name__ == "__main__":
    sys.exit(main())

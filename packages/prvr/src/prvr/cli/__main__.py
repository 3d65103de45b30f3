"""`python -m prvr.cli` is `prvr`."""

import sys

from prvr.cli import main

if __name__ == "__main__":
    sys.exit(main())

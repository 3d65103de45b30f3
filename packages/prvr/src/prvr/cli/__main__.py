"""`python -m prvr.cli` is `prvr`."""

import sys

from prvr.cli import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, from which only what the user names is imported
    sys.exit(main())

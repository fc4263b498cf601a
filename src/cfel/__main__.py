"""`python -m cfel`: the command line without its script."""

import sys

from cfel.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m routing` runs the router alone."""

import sys

from routing.command import main

if __name__ == "__main__":
    sys.exit(main())

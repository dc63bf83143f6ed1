"""`python -m console.simulator serve MODEL …`: see the package's docstring."""

import os
import sys

from .process import main

if __name__ == "__main__":
    main(sys.argv[1:], os.environ)

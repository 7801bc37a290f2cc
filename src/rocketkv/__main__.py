"""`python -m rocketkv`: the command line."""

import sys

from rocketkv.cli import main

if __name__ == "__main__":
    sys.exit(main())

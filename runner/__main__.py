"""`python -m runner` runs the runner with settings from the environment."""

import sys

from runner.server import main

if __name__ == "__main__":
    sys.exit(main())

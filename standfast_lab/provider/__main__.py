"""`python -m standfast_lab.provider`."""

import sys

from standfast_lab.provider.main import main

sys.exit(main())

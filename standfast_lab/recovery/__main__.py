"""`python -m standfast_lab.recovery`."""

import sys

from standfast_lab.recovery.main import main

sys.exit(main())

"""`python -m standfast_client`, as `standfast`."""

from standfast_client.cli import main

main()

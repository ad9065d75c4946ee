"""`python -m sandbox_manager` runs the manager with settings from the environment."""

import sys

from sandbox_manager.server import run
from sandbox_manager.settings import ManagerSettings
from standfast_chassis.errors import SettingsError

if __name__ == "__main__":
    try:
        settings = ManagerSettings.load()
    except SettingsError as error:
        print(f"standfast manager: {error.message}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(settings))

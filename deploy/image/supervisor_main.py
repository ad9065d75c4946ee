"""Starts the supervisor: `python3 -I -S -B /opt/standfast/supervisor` runs this file with only its own folder and the library in sys.path."""

import runpy

runpy.run_module("guest", run_name="__main__", alter_sys=True)

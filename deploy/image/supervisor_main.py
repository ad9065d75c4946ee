"""Starts the supervisor: `python3 -I -S -B /opt/standfast/supervisor` runs this file.

Only its own folder and the standard library are in `sys.path` then.
"""

import runpy

runpy.run_module("guest", run_name="__main__", alter_sys=True)

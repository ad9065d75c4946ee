"""Starts the bridge: `python3 -I -S -B FOLDER` runs this file with nothing but this folder's package and the standard library."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("bridge.main", run_name="__main__", alter_sys=True)

"""A stand-in for Claude Code 2.1.220: the same protocol, files and faults, without a model and without isolation.

Standard library only; started as `tests/stub_cli/claude`, or as the single file that tool_folder.py makes of it.
"""

VERSION = "2.1.220"

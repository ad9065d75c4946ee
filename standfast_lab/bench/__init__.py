"""Measures the product against the bare thing that does the same work, in one run, on this machine, turn and turn about.

What comes out are ratios and differences. They are goals of the project, never tests: an absolute figure says nothing on another machine.
"""

"""Builds what a host runs (an image, or a folder of tools) from pinned parts, and writes down what was measured in it."""

"""Codex 0.171.0 (app-server), as the sandbox side knows it. Facts observed against a loopback provider, Linux x64."""

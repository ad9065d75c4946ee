"""Claude Code 2.1.220, as the sandbox side knows it. Facts observed against a loopback provider, Linux x64."""

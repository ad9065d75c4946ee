"""Pi 1.6.0, as the sandbox side knows it. Facts observed against a loopback provider, Linux x64, Node 22."""

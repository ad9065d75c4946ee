"""Pi 1.6.0 over its RPC mode: frames, the reader of what it prints, the driver."""

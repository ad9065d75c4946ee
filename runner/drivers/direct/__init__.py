"""The built-in agent, version 1 of its stdio protocol: frames, the reader of what it prints, the driver."""

"""Claude Code 2.1.220 over stream-json: frames, the reader of what it prints, the driver."""

"""OpenCode and Kilo behind `http-agent-live-bridge=4`: frames, the reader of what the bridge prints, the driver."""

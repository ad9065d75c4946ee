"""The story that shows what the product promises, on real parts: `scripts/demo`."""

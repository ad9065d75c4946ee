"""The three provider protocols: requests out, streams in, and the one HTTP transport under them."""

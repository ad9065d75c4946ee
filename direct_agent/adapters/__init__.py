"""Where the direct agent touches the network and the clock."""

"""Pure decisions of the direct agent that need no protocol: endpoint kinds and what of a history is sent."""

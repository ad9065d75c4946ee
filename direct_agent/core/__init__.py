"""Pure decisions of the direct agent that need no protocol: endpoint kinds, settings, what of a history is sent."""

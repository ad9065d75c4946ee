"""Standfast for its users: an asynchronous SDK (`sdk`) and the command line (`cli`)."""

"""One turn: rounds with the model, tool calls, cancel, steer, questions. A pure machine, and a conductor that performs it."""

"""Write intents: recorded durably before any change, so that after a crash it can be proved whether the change is there."""

"""Provider recovery: what a failure means, whether to ask again, and the repaired view."""

"""The recovery scenarios: a scripted provider on loopback, a clock turned by hand, and rows of what must be seen."""

"""The program that others drive: one JSON object a line, both ways."""

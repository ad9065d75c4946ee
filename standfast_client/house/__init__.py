"""`standfast up`: the three processes on one machine, with one state folder."""

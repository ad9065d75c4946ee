"""The commands of `standfast`, one file a group."""

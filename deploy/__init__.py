"""What turns the tree into something that runs: the sandbox image, the tool folder of the local engine, the release manifest."""

"""What follows from hints and from changes between runs, for the owner's eyes."""

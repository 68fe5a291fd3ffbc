"""What crosses a trust boundary: messages, plans, the directory, and what both sides compute from them. Pure."""

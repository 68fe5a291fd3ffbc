"""What an operator calls and what runs by itself: verbs, pages, operations."""

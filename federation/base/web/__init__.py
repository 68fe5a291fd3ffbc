"""Web pages of all programs: whom they answer, how they are rendered, and their style."""

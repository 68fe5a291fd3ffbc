"""What every program needs: settings, logs, the terminal, key files, a pinned directory, pages."""

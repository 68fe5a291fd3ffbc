"""Parts that all programs use: settings, logs, terminal output, key files, the pinned directory, web pages."""

"""How well a tool finds causes in logs: README.md says how to score another one."""

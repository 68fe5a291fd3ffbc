"""The parts of the audit."""

"""What made the steps of a job long: its schedule is rebuilt from a trace and run again with parts of it made ideal."""

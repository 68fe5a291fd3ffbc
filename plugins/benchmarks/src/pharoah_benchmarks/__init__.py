"""The provider's own training jobs: a catalogue, and how one of them is run and recorded."""

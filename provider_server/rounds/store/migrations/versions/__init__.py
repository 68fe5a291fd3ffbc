"""One file per step. A step that was released is never changed; a change of the schema is a new step."""

"""Studies: each answers one question about the whole with a table. `pharoah-sim study` lists them."""

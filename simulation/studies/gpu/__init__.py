"""What only a GPU can show, tried on whatever card there is: `make gpu`, or `pharoah-sim study gpu`."""

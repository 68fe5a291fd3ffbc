"""What only a GPU can show, tried on whatever card there is: `make gpu`, or `python -m benchmarks.gpu`."""

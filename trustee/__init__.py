"""The third trust domain: holds a share of the token key and mask streams, and learns nothing from either."""

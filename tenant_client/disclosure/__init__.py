"""What its owner may see at any time of what was kept, spent and sent."""

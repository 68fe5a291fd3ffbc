"""What listens and what calls: Flower's SuperLink, HTTP listeners, the trustees. Every import of `flwr` is here."""

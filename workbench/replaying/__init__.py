"""A record scored again under other rewards."""

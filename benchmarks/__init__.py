"""Measurements of the whole server beside its parts and its peers. Run them with nothing else running."""

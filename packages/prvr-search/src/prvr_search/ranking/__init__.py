"""Queries, scores and moments: which films answer, and where in them."""

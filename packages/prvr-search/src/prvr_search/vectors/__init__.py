"""What a model makes of the features of films: unit vectors, kept in files that can be made again."""

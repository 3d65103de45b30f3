"""The world of the toy corpora, read a second time: what a corpus promises, and models trained on variants of it."""

"""What is kept of films on disk: features, descriptions, faults, where each was seen, and lines of subtitles."""

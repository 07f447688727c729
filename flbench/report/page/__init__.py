"""The document of a leaderboard: tables, paragraphs and pictures in blocks, in no format yet."""

"""A leaderboard as Markdown, HTML, JSON, and in a terminal."""

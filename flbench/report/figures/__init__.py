"""Figures of a leaderboard, by kind."""

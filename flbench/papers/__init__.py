"""The papers that flbench tests: their published numbers, claims, verdicts, chapters and figures, a folder each."""

"""Models and uploads in parts, so that transfers over slow links resume where they broke."""

"""The coordinator: plans edge rounds, has them carried out, and records global rounds."""

"""Messages between nodes: framing, gRPC with certificates on both sides, and memory for tests."""

"""What a device computes: local SGD, estimates of σ² and G², and many devices at once."""

"""What a device computes: local SGD, estimates of σ² and G²; also for many devices at once."""

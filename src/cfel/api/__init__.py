"""What a person asks for: planning a fleet, benchmarks, comparisons."""

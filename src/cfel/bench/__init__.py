"""The benchmarks of the project: solver, simulator, Ray and real processes."""

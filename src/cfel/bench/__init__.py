"""The project's own measurements: the solver, the simulator, Ray and real processes."""

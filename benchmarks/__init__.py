"""The project's own measurements: `python -m benchmarks NAME`, from the root of the repository.

One module per benchmark measures and prints. `settings` has the fleets, models and data to measure,
`federations` the experiments that run as real processes, `child` what needs a fresh process.
"""

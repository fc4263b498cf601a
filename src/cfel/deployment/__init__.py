"""Real time: an experiment as edge servers and devices on a network; only this package connects them."""

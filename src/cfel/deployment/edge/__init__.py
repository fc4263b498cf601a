"""An edge server: serves its devices, aggregates their updates, and gossips with its neighbours."""

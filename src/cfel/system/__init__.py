"""Who takes part: devices, clusters, the backhaul between edge servers, and their changing conditions."""

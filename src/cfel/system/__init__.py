"""The system: devices, clusters, the backhaul between edge servers, and conditions that change over time."""

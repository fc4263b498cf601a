"""Real time: an experiment as edge servers and devices on a network; the only package that touches one."""

"""What nodes say to each other: a typed request and a typed answer per remote method, and their bytes."""

"""What nodes say to each other: typed requests and answers, their bytes, and gRPC, which moves them."""

import os

# gRPC's C library writes lines of its own to standard error, in no format of ours. It reads this variable
# when it is imported; a value that the user has set wins.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

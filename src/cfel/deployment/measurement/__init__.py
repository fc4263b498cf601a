"""How devices measure their seconds and joules, and how the coordinator plans and counts with them."""

"""Starting a whole federation, or one node of it, as operating-system processes."""

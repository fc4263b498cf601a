"""The paper's tables and figures, measured here and shown beside the paper's values."""

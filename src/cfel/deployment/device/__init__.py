"""A device: fetches its order and the model, trains, and uploads its update."""

"""Tables that users write: columns of a CSV or Parquet file, with errors that say where."""

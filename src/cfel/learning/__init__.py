"""What is learned: models, data sets, their partition, local SGD, compression, aggregation.

The only package that computes with torch. It knows nothing of seconds and joules, or of clocks and sockets.
"""

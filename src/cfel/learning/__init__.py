"""What is learned: models, data sets, partition, local SGD, compression, aggregation.

The only place with torch. It knows neither seconds nor joules, neither clocks nor sockets.
"""

"""Latency at fixed rates: the service at 10 %, 50 % and 80 % of what it can answer, over HTTP and gRPC.

entry       the servers, and the rates
wire        requests and responses of HTTP/1.1 and gRPC as bytes
load        sends requests at times fixed beforehand, or as fast as they are answered: one process, one turn
client      starts that process
histogram   latencies in buckets that turns can add up
measure     servers as child processes on their own core, and the order of turns
results     from turns to percentiles, and the targets
page        the text and tables
"""

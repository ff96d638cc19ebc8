"""The sixth part of the benchmarks: gRPC servers that only send a message back, and the service beside them.

messages   the request and response messages
echoes     the minimal server on each gRPC library
entry      the contenders, and the requests sent to them
h2load     one turn: h2load calls one server for some seconds
measure    servers as child processes on their own core, and the order of turns
results    from rounds to ratios, and the targets
page       the text and tables
picture    the chart
"""

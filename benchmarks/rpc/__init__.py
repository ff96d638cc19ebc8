"""The sixth part of the benchmarks: gRPC servers that only send a message back, and the service beside them.

messages   what is sent and answered
echoes     the least that each gRPC server can do
entry      who takes part, and what is asked of them
h2load     one turn: h2load asks one server for some seconds
measure    servers as child processes on a core of their own, and whose turn it is
results    from rounds to ratios, and what was aimed at
page       the words and tables
picture    the chart
"""

"""The fifth part of the benchmarks: one small application of FastAPI, without limits and with everybody's.

entry           who takes part: whose limits, put on in which way, and where they count
bare            the application without limits
ours            the same with Crestgate's
peers           the same with those of other libraries
measure         servers as child processes, and whose turn it is; requests.lua is for wrk, which asks them
redis_figures   what the Redis under them says of itself
results         from rounds to ratios, and what was aimed at
page            the words and tables
picture         the chart
"""

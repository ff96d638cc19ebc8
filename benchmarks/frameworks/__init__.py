"""The fifth part of the benchmarks: one small application of FastAPI, without limits and with those of each library.

entry           the contenders: library, kind of integration, and store
bare            the application without limits
ours            the same with Crestgate's
peers           the same with those of other libraries
measure         servers as child processes, and the order of turns; requests.lua is for wrk, which calls them
redis_figures   statistics of the Redis behind them
results         from rounds to ratios, and the targets
page            the text and tables
picture         the chart
"""

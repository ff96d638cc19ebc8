"""The second part of the benchmarks: stores across a network, where the time goes into waiting and into round trips.

entry       the contenders, and their load
ours        Crestgate: with its batches, and one by one
peers       the other libraries, each on its asynchronous Redis store
bare        a script of one key through redis-py, and nothing else
classic     one transaction per check, written by hand
load        callers without a pause, or arrivals at a rate
worker      one contender in its process
rounds      the order of turns
contests    the comparisons, and their duration
results     from rounds to ratios, and the targets
page        the text and tables
picture     the chart
"""

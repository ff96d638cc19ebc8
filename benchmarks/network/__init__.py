"""The second part of the benchmarks: stores across a network, where the time goes into waiting and into round trips.

entry       who takes part, and under which load
ours        Crestgate: with its batches, and one by one
peers       the other libraries, each on its asynchronous Redis store
bare        a script of one key through redis-py, and nothing else
classic     one transaction per check, written by hand
load        callers without a pause, or arrivals at a rate
worker      one contender in its process
rounds      whose turn it is
contests    what is compared with what, and how long
results     from rounds to ratios, and what was aimed at
page        the words and tables
picture     the chart
"""

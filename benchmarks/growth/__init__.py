"""How the cost of a check grows: with keys, chains, rules, callers, processes and workers.

in_process   keys and chains: a program that one build of Crestgate runs, beside a bare dict
rule_sets    rules: the same, with finding the rules of a request, and with loading many
processes    processes that count in one shared memory: a program for each of them
workers      the service with 1 to 8 workers, over HTTP and gRPC
measure      all of them, one after another; callers of a Redis are those of benchmarks.network
results      from turns to ratios, and the targets
page         the text and tables
picture      the chart
"""

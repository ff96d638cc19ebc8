"""The fourth part of the benchmarks: the service over HTTP, asked by wrk, beside a server that does nothing.

entry           who takes part: what is asked of which server, and how it is set
echo            the application that does nothing: it sends back what it gets
serving         servers as child processes, and what they say of themselves
wrk             one turn of one of them; requests.lua is what it sends
counting        what metrics cost, timed without any server
measure         whose turn it is
results         from rounds to ratios, and what was aimed at
page            the words and tables
picture         the chart
"""

"""The fourth part of the benchmarks: the service over HTTP, called by wrk, beside a server that does nothing.

entry           the contenders: requests, servers and settings
echo            the application that does nothing: it sends back what it gets
serving         servers as child processes, and their own figures
wrk             one turn of one of them; requests.lua is what it sends
counting        what metrics cost, timed without any server
measure         the order of turns
results         from rounds to ratios, and the targets
page            the text and tables
picture         the chart
"""

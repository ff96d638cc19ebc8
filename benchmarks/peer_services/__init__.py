"""The service beside rate limit services in other languages, each on one core, in one run.

install    the others, by package name, into .bench-venv
entry      the contenders: their servers and their calls
measure    the order of turns
results    from turns to ratios, and the targets
page       the text and tables
"""

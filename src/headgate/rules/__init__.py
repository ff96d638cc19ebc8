"""What applies to whom. So far: the description of a request that rules will be matched against."""

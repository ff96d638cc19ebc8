"""`crestgate serve`: the decisions of the library over HTTP, and an API to rule over them."""

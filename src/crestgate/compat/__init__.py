"""The interfaces of other rate limiting libraries, on Crestgate's stores: for programs that already use one of them."""

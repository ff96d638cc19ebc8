"""Path normalisation, endpoint patterns, and the trie that matches them."""

"""The control plane: rules, plans, users, policies, clients, audit and statistics over HTTP, and the OpenAPI of all."""

"""The admin API: rules, plans, users, policies, clients, audit and statistics over HTTP, and the OpenAPI document."""

"""The dashboard: pages for whoever has a key, rendered on the server, with live data by server-sent events."""

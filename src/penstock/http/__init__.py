"""The HTTP API: one route table, from which the router, the access rules and the OpenAPI document are made."""

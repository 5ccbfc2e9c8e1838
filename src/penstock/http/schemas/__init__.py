"""Models of the documents of the API, from which the OpenAPI document is made. Tests compare them with responses."""

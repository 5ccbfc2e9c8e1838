"""The pages of the web console: HTML from the documents of the API."""

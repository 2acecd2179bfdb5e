"""`turnstile dashboard`: the service in a browser, live and read-only."""

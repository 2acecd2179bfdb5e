"""Pages for operators (the service, and its answers) and the portal, a page for each user."""

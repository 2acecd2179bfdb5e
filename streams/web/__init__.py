"""The dashboard for operators and the portal for users: two sites, each with one page."""

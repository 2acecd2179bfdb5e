"""What the pages of this service have in common: how they are served, and what guards them."""

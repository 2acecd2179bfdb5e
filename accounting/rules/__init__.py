"""Who is admitted to a step, and what can be said of those who were."""

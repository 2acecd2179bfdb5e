"""`turnstile portal`: to each user what that user has spent, and nobody else's."""

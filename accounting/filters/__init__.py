"""Privacy filters: which users a step admits, and what it charges them."""

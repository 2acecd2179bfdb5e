"""The cost of one step for each user, by mechanism and measure."""

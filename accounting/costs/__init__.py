"""What one step costs each user, per mechanism and per measure."""

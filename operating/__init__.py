"""What operators see and do, by subject."""

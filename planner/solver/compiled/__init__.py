"""The method for large problems, its inner loops compiled."""

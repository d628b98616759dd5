"""What the launcher and the ranks share."""

"""What the estimators of all frameworks have in common."""

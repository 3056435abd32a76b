"""What programs run on: the contract in `base`, and its implementations."""

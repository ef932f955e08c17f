"""What can be observed of a server and its machine, read without judging it."""

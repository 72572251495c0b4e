"""The stream of operations from the program to the ranks, and the errors that come back."""

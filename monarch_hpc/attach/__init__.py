"""The client side: attaches programs and commands to an allocation."""

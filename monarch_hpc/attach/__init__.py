"""The client side: how a program or a command comes to an allocation."""

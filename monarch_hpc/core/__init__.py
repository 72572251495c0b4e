"""Errors, shapes, identities and small tools shared by all other packages; imports none of them."""

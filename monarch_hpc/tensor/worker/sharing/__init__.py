"""A rank's side towards other actors of its proc: how they find its worker, and how values reach them."""

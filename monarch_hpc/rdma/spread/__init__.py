"""One memory copied to many, and many to one: who pulls from whom, and what happens when some are lost."""

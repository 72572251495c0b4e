"""Words and pure pieces that every other package uses; imports nothing of ours."""

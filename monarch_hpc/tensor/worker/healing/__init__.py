"""The part of healing that runs on a rank: going back to a commit, and giving or taking the state."""

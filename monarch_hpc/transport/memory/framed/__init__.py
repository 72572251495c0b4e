"""Transfers with memory of other processes by frames, where no fabric moves the bytes by itself."""

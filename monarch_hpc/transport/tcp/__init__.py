"""The socket of a channel: encrypted frames over TCP, and detection of cut connections."""

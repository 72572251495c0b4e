"""The helper of a host, `monarch-scribe`: it samples the host, and keeps what procs record. Its death harms nothing."""

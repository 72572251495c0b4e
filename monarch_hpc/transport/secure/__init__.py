"""Authentication by the allocation's key, encryption of records, and the fence against processes declared lost."""

"""The allocation's directory: its files, their schemas, who may write them."""

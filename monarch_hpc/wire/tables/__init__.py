"""Tables that the processes of an allocation answer questions with: their columns, and the rendering of their rows."""

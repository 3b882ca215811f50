"""Several runs side by side: what differs in them, and what they gained."""

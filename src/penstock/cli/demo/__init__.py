"""`penstock demo`: a private shop, a load on it, and a flow that follows."""

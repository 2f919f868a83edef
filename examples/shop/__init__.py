"""A shop's support agent: it looks an order up, charges a card and sends a receipt."""

"""What the model reads of its calls: one reply per call, and notices of what came later."""

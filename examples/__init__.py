"""Applications as their users write them; they import `commitline` as anybody does."""

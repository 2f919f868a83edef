"""All that passes between workflows and activities: plain values, as JSON."""

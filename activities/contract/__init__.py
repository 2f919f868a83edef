"""All that passes between workflows and activities: plain values, as JSON.

Each message is a frozen dataclass. Its first line says who sends it to whom. The names of the
activities stand beside their messages.
"""

"""For tests and demonstrations: real servers, processes to kill, a provider that counts."""

"""What happened, step by step: records, and the bounded outlets that write or publish them without blocking."""

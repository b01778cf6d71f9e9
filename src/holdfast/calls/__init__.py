"""Functions as jobs: `submit` sends one anywhere, and a `Job` brings back what it returned or raised."""

"""The live page: this user's runs and jobs in a browser, on loopback."""

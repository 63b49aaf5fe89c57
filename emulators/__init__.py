"""Loopback stand-ins for the platforms' control planes: their real SDKs talk to them, a local process does the job."""

"""A loopback Modal: the control plane that the real SDK talks to, and its containers as processes of this machine."""

"""A loopback stand-in for the Nodus control plane and its nodes, for the real SDK. See README.md."""

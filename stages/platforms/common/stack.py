"""What a worker's image installs."""

from stages.protocol import Stack

# What the worker's code imports beside the protocol's stack.
NEEDS = ("pydantic==2.14.4", "PyYAML==6.0.4")


def requirements(stack: Stack) -> list[str]:
    """The pinned stack and what the worker's code itself needs, as pip takes them."""
    pins = stack.model_dump(by_alias=True)
    return [*(f"{name}=={version}" for name, version in pins.items()), *NEEDS]

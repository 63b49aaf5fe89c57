"""Child processes that do not outlive this one."""

import subprocess


def stop(child: "subprocess.Popen[str]", grace: float = 10) -> None:
    """Ask a child to end, and end it where it does not."""
    child.terminate()
    try:
        child.wait(timeout=grace)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()

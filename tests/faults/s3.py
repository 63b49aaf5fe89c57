"""An S3 server on loopback, moto's, that knows one user and refuses all others."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stages.command import die_with_parent
from stages.platforms.common.process import stop

BUCKET = "parity"
REGION = "us-east-1"


class Server(NamedTuple):
    """A running server, and the environment of who may use it."""

    url: str
    environment: dict[str, str]

    def client(self, service: str = "s3") -> Any:
        import boto3

        keys = {name.lower(): self.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        return boto3.client(service, endpoint_url=self.url, region_name=REGION, **keys)

    def names(self, prefix: str) -> list[str]:
        found = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for entry in found.get("Contents", [])]

    def read(self, name: str) -> bytes:
        content: bytes = self.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content

    def put(self, name: str, content: bytes) -> None:
        self.client().put_object(Bucket=BUCKET, Key=name, Body=content)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(url: str, body: bytes | None = None) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "text/plain"})  # a form's would not be read
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """The server with its bucket and its user; from then on it checks who asks."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    environment = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": "1000000"}
    with (folder / "moto.log").open("w") as log:
        child = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, text=True, preexec_fn=die_with_parent
        )
    try:
        while child.poll() is None:
            with contextlib.suppress(OSError):
                ask(f"{url}/moto-api/data.json")
                break
            time.sleep(0.2)
        anyone = Server(url, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
        anyone.client().create_bucket(Bucket=BUCKET)
        keys = user(anyone.client("iam"))
        ask(f"{url}/moto-api/reset-auth", b"0")
        alone = {"AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(folder)}
        yield Server(url, keys | alone)
    finally:
        stop(child)


def user(iam: Any) -> dict[str, str]:
    """Make a user who may do everything with S3; their keys."""
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.create_user(UserName="teammate")
    iam.put_user_policy(UserName="teammate", PolicyName="all", PolicyDocument=document)
    key = iam.create_access_key(UserName="teammate")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

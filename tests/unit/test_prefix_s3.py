"""The remote tier on S3, against a server on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from blocks import bound, is_true, make_block, make_chain
from moto.server import ThreadedMotoServer

from ipyllama.prefix import FsspecBackend, PrefixMemory
from ipyllama.prefix.store.blocks import BlockStore

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

LINKS = make_chain(range(40))
KEYS = {"key": "a", "secret": "b", "client_kwargs": {"region_name": "us-east-1"}}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.create_bucket(Bucket="team")
    yield url
    server.stop()


def test_what_one_machine_sends_another_finds(tmp_path: Path, endpoint: str) -> None:
    sender = bound(
        PrefixMemory(
            remote=FsspecBackend("s3://team/prefix", endpoint_url=endpoint, **KEYS),
            write_through=True,
            remote_timeout=60,
        )
    )
    for link in LINKS:
        sender.save(make_block(link, 200_000))
    assert sender.flush(60)
    remote = FsspecBackend("s3://team/prefix/", endpoint_url=endpoint, **KEYS)
    memory = bound(PrefixMemory(tmp_path, remote=remote, remote_timeout=60))
    memory.ask_remote(LINKS)
    blocks = [memory.load(found) for found in memory.find(LINKS)]
    assert len(blocks) == len(LINKS)
    assert all(block is not None and is_true(block) for block in blocks)
    assert memory.flush(60)
    assert (memory.stats().disk_blocks, memory.stats().problem) == (len(LINKS), "")
    store = BlockStore(remote)
    assert all(abs(entry.used - time.time()) < 600 for entry in store.entries())
    store.put_note("note", {"a": 1})
    assert store.notes() == {"note": {"a": 1}}
    for entry in list(store.entries()):
        store.delete(entry)
    assert not store.has(LINKS[0].parent, LINKS[0].key)


def test_a_server_that_takes_the_call_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        url = f"http://127.0.0.1:{dumb.getsockname()[1]}"
        memory = bound(
            PrefixMemory(remote=FsspecBackend("s3://team/prefix", endpoint_url=url, **KEYS), remote_timeout=1)
        )
        began = time.perf_counter()
        with pytest.warns(UserWarning, match="s3://team/prefix did not answer in time"):
            memory.ask_remote(LINKS)
        assert time.perf_counter() - began < 3
        assert memory.find(LINKS) == []

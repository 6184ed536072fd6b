"""Where the broker is, and names that no other test uses."""

import os
import threading
import uuid

import pytest

HOST = os.environ.get("AMQP_HOST", "127.0.0.1")
PORT = int(os.environ.get("AMQP_PORT", "5672"))
URL = os.environ.get("AMQP_URL", f"amqp://guest:guest@{HOST}:{PORT}/%2f")


@pytest.fixture
def host():
    return HOST


@pytest.fixture
def port():
    return PORT


@pytest.fixture
def url():
    return URL


@pytest.fixture
def name():
    """Makes names: name("orders") is "orders-<something of this test alone>"."""
    suffix = uuid.uuid4().hex[:12]
    return lambda base: f"{base}-{suffix}"


@pytest.fixture
def background():
    """Runs functions in threads, and fails the test when one of them failed or never ends."""
    running = []

    def run(function, *arguments):
        failures = []

        def guarded():
            try:
                function(*arguments)
            except BaseException as error:  # whatever it is, the test must know
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        running.append((thread, failures))
        return thread

    yield run
    for thread, failures in running:
        thread.join(30)
        assert not thread.is_alive(), "a background thread never ended"
        assert not failures, failures

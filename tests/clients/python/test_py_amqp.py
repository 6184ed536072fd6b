"""The stories through py-amqp, the transport below kombu and so below Celery and OpenStack."""

import datetime
import decimal
import socket

import amqp
import pytest
from amqp import exceptions

MIB = 1024 * 1024


@pytest.fixture
def connect(host, port):
    """Opens connections that are closed after the test."""
    opened = []

    def open_one(**options):
        connection = amqp.Connection(f"{host}:{port}", "guest", "guest", virtual_host="/", **options)
        connection.connect()
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(connect):
    return connect()


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def queue(channel, name):
    queue = name("q")
    channel.queue_declare(queue, auto_delete=False)
    return queue


def publish(channel, queue, body, **properties):
    channel.basic_publish(amqp.Message(body, **properties), exchange="", routing_key=queue)


def consume(connection, channel, queue, count, **options):
    """Consumes this many messages."""
    got = []
    tag = channel.basic_consume(queue, callback=got.append, **options)
    while len(got) < count:
        connection.drain_events(timeout=10)
    return tag, got


def test_publish_consume_ack(connection, channel, queue):
    for number in range(3):
        publish(channel, queue, str(number))
    _, got = consume(connection, channel, queue, 3)
    assert [message.body for message in got] == ["0", "1", "2"]
    for message in got:
        channel.basic_ack(message.delivery_tag)
    channel.close()
    assert connection.channel().queue_declare(queue, passive=True).message_count == 0


def test_confirms_for_routable_and_unroutable(connect, name):
    connection = connect(confirm_publish=True)
    channel = connection.channel()
    queue = name("q")
    channel.queue_declare(queue)
    returned = []
    channel.events["basic_return"].add(lambda *event: returned.append(event))
    acks = []
    channel.events["basic_ack"].add(lambda *event: acks.append((event, len(returned))))
    publish(channel, queue, "routed")
    publish(channel, name("nowhere"), "dropped")
    nowhere = name("nowhere")
    channel.basic_publish(amqp.Message("returned"), exchange="", routing_key=nowhere, mandatory=True)
    (error, exchange, routing_key, message), = returned
    assert (error.reply_code, error.reply_text, exchange, routing_key) == (312, "NO_ROUTE", "", nowhere)
    assert message.body == "returned"
    assert len(acks) == 3 and acks[-1][1] == 1, "the return comes before its ack"
    assert channel.basic_get(queue, no_ack=True).body == "routed"


def test_rpc_over_a_reply_queue(connect, channel, connection, name):
    requests = name("rpc")
    channel.queue_declare(requests)
    replies = channel.queue_declare(exclusive=True).queue
    publish(channel, requests, "question", reply_to=replies, correlation_id="42")

    serving = connect()
    server = serving.channel()
    _, (request,) = consume(serving, server, requests, 1, no_ack=True)
    publish(server, request.reply_to, request.body.upper(), correlation_id=request.correlation_id)

    _, (reply,) = consume(connection, channel, replies, 1, no_ack=True)
    assert (reply.correlation_id, reply.body) == ("42", "QUESTION")


def test_get_and_get_empty(channel, queue):
    assert channel.basic_get(queue) is None
    publish(channel, queue, "1")
    publish(channel, queue, "2")
    message = channel.basic_get(queue, no_ack=True)
    assert (message.body, message.delivery_info["message_count"]) == ("1", 1)
    assert message.delivery_info["redelivered"] is False


def test_transactions(connection, channel, queue):
    onlooker = connection.channel()
    channel.tx_select()
    publish(channel, queue, "rolled back")
    channel.tx_rollback()
    publish(channel, queue, "committed")
    assert onlooker.basic_get(queue) is None
    channel.tx_commit()
    assert onlooker.basic_get(queue, no_ack=True).body == "committed"
    assert onlooker.basic_get(queue) is None


def refused(connection, error, text, action):
    """The action closes its channel with this error and text, and the connection stays."""
    with pytest.raises(error) as closed:
        action(connection.channel())
    assert closed.value.reply_text == text
    assert connection.connected
    connection.channel().close()


def test_errors_close_the_channel_only(connect, connection, channel, queue, name):
    missing, mine = name("missing"), name("mine")
    refused(
        connection,
        exceptions.NotFound,
        f"NOT_FOUND - no queue '{missing}' in vhost '/'",
        lambda channel: channel.queue_declare(missing, passive=True),
    )
    refused(
        connection,
        exceptions.PreconditionFailed,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'true' but current is 'false'",
        lambda channel: channel.queue_declare(queue, durable=True, auto_delete=False),
    )
    refused(
        connection,
        exceptions.AccessRefused,
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        lambda channel: channel.queue_declare("amq.mine"),
    )
    connect().channel().queue_declare(mine, exclusive=True)
    refused(
        connection,
        exceptions.ResourceLocked,
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{mine}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration.",
        lambda channel: channel.queue_declare(mine, exclusive=True),
    )
    publish(channel, queue, "still open")


def test_large_and_empty_bodies(channel, queue):
    large = bytes(range(256)) * (20 * MIB // 256)
    for body in (large, b""):
        publish(channel, queue, body)
        got = channel.basic_get(queue, no_ack=True).body
        assert (got if isinstance(got, bytes) else got.encode()) == body


def test_properties_and_headers_come_back(channel, queue):
    headers = {
        "bool": True,
        "int": -7,
        "long": 2**40,
        "double": 2.5,
        "decimal": decimal.Decimal("3.14"),
        "text": "Grüße",
        "time": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "none": None,
        "list": [1, "two", [3]],
        "table": {"nested": {"deep": 1}},
    }
    properties = dict(
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=2,
        priority=5,
        correlation_id="correlation",
        reply_to="reply",
        expiration="60000",
        message_id="message",
        timestamp=1_700_000_000,
        type="type",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    publish(channel, queue, "", application_headers=headers, **properties)
    got = channel.basic_get(queue, no_ack=True).properties
    assert got.pop("application_headers") == headers
    assert got == properties


def test_prefetch_and_multiple_ack(connection, channel, queue):
    for number in range(6):
        publish(channel, queue, str(number))
    channel.basic_qos(prefetch_size=0, prefetch_count=3, a_global=False)
    _, got = consume(connection, channel, queue, 3)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.2)
    channel.basic_ack(got[2].delivery_tag, multiple=True)
    while len(got) < 6:
        connection.drain_events(timeout=10)
    assert [message.body for message in got] == ["0", "1", "2", "3", "4", "5"]


def test_rejected_message_returns_to_its_place(channel, queue):
    for number in range(3):
        publish(channel, queue, str(number))
    first, second = channel.basic_get(queue), channel.basic_get(queue)
    channel.basic_reject(second.delivery_tag, requeue=True)
    channel.basic_reject(first.delivery_tag, requeue=True)
    again = [channel.basic_get(queue) for _ in range(3)]
    assert [message.body for message in again] == ["0", "1", "2"]
    assert [message.delivery_info["redelivered"] for message in again] == [True, True, False]
    channel.basic_recover(requeue=True)
    assert channel.basic_get(queue).body == "0"


def test_cancel_by_client_and_by_broker(connection, channel, name):
    queue = name("short-lived")
    channel.queue_declare(queue, auto_delete=False)
    tag, _ = consume(connection, channel, queue, 0)
    channel.basic_cancel(tag)
    assert channel.queue_declare(queue, passive=True).consumer_count == 0
    told = []
    channel.basic_consume(queue, callback=lambda _: None, consumer_tag="watched", on_cancel=told.append)
    connection.channel().queue_delete(queue)
    while not told:
        connection.drain_events(timeout=10)
    assert told == ["watched"]


def test_server_named_exclusive_queue(channel):
    queue = channel.queue_declare(exclusive=True).queue
    assert queue.startswith("amq.gen-")
    publish(channel, queue, "mine")
    assert channel.basic_get(queue, no_ack=True).body == "mine"


@pytest.mark.parametrize(
    "kind, key, arguments, hits, misses",
    [
        ("direct", "a", None, [("a", {})], [("b", {})]),
        ("fanout", "", None, [("any", {})], []),
        ("topic", "a.*.#", None, [("a.b", {}), ("a.b.c.d", {})], [("a", {}), ("b.a", {})]),
        ("headers", "", {"x-match": "all", "k": 1, "l": "x"}, [("", {"k": 1, "l": "x"})], [("", {"k": 1})]),
        ("headers", "", {"x-match": "any", "k": 1, "l": "x"}, [("", {"k": 1})], [("", {"k": 2})]),
    ],
)
def test_routing(channel, queue, name, kind, key, arguments, hits, misses):
    exchange = name(kind)
    channel.exchange_declare(exchange, kind, auto_delete=True)
    channel.queue_bind(queue, exchange, key, arguments=arguments)
    for routing_key, headers in hits + misses:
        channel.basic_publish(amqp.Message("", application_headers=headers), exchange, routing_key)
    got = [channel.basic_get(queue, no_ack=True) for _ in hits]
    assert all(message is not None for message in got)
    assert channel.basic_get(queue) is None


def test_many_channels_on_one_connection(connection, queue):
    channels = [connection.channel() for _ in range(200)]
    for number, channel in enumerate(channels):
        publish(channel, queue, str(number))
        channel.queue_declare(queue, passive=True)
    bodies = {channel.basic_get(queue, no_ack=True).body for channel in channels}
    assert bodies == {str(number) for number in range(200)}


def test_heartbeats_are_negotiated(connect):
    connection = connect(heartbeat=10)
    assert connection.heartbeat == 10
    connection.send_heartbeat()
    connection.channel().close()


def test_wrong_password_is_refused(host, port):
    connection = amqp.Connection(f"{host}:{port}", "guest", "wrong", login_method="PLAIN")
    with pytest.raises(exceptions.AccessRefused):
        connection.connect()

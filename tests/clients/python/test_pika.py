"""The stories through pika's blocking connection."""

import datetime
import decimal

import pika
import pytest
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

MIB = 1024 * 1024


@pytest.fixture
def connection(url):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def queue(channel, name):
    queue = name("q")
    channel.queue_declare(queue, auto_delete=False)
    yield queue
    if channel.is_open:
        channel.queue_delete(queue)


def get(channel, queue):
    """A message that is there or on its way, acknowledged."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=10):
        assert method is not None, "no message came"
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
        return method, properties, body


def test_publish_consume_ack(channel, queue):
    for number in range(3):
        channel.basic_publish("", queue, str(number).encode())
    bodies = []
    for method, _, body in channel.consume(queue, inactivity_timeout=10):
        assert method is not None, "no message came"
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == 3:
            break
    channel.cancel()
    assert bodies == [b"0", b"1", b"2"]
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_confirms_for_routable_and_unroutable(channel, queue, name):
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"routed")
    channel.basic_publish("", name("nowhere"), b"dropped")
    with pytest.raises(UnroutableError) as refused:
        channel.basic_publish("", name("nowhere"), b"returned", mandatory=True)
    (returned,) = refused.value.messages
    assert returned.body == b"returned"
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert get(channel, queue)[2] == b"routed"


def test_rejected_publish_is_nacked(channel, name):
    full = name("full")
    channel.queue_declare(full, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", full, b"fits")
    with pytest.raises(NackError):
        channel.basic_publish("", full, b"too much")


def test_persistent_publishes_are_confirmed(channel, name):
    queue = name("durable")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))
    assert channel.queue_delete(queue).method.message_count == 50


def test_rpc_over_a_reply_queue(url, channel, name, background):
    requests = name("rpc")
    channel.queue_declare(requests, exclusive=False, auto_delete=True)

    def serve():
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            server = connection.channel()
            for method, properties, body in server.consume(requests, inactivity_timeout=10):
                assert method is not None, "no request came"
                reply = pika.BasicProperties(correlation_id=properties.correlation_id)
                server.basic_publish("", properties.reply_to, body.upper(), reply)
                server.basic_ack(method.delivery_tag)
                break

    background(serve)
    replies = channel.queue_declare("", exclusive=True).method.queue
    properties = pika.BasicProperties(reply_to=replies, correlation_id="42")
    channel.basic_publish("", requests, b"question", properties)
    _, properties, body = get(channel, replies)
    assert (properties.correlation_id, body) == ("42", b"QUESTION")


def test_get_and_get_empty(channel, queue):
    assert channel.basic_get(queue) == (None, None, None)
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"1")
    channel.basic_publish("", queue, b"2")
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (body, method.message_count, method.redelivered) == (b"1", 1, False)


def test_transactions(connection, channel, queue):
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    onlooker = connection.channel()
    assert onlooker.basic_get(queue) == (None, None, None)
    channel.tx_commit()
    assert onlooker.basic_get(queue, auto_ack=True)[2] == b"committed"
    assert onlooker.basic_get(queue) == (None, None, None)


def refused(connection, code, text, action):
    """The action closes its channel with this code and text, and the connection stays."""
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as closed:
        action(channel)
    assert (closed.value.reply_code, closed.value.reply_text) == (code, text)
    assert channel.is_closed and connection.is_open
    connection.channel().close()


def test_errors_close_the_channel_only(url, connection, channel, queue, name):
    missing, mine = name("missing"), name("mine")
    refused(
        connection,
        404,
        f"NOT_FOUND - no queue '{missing}' in vhost '/'",
        lambda channel: channel.queue_declare(missing, passive=True),
    )
    refused(
        connection,
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': "
        "received 'true' but current is 'false'",
        lambda channel: channel.queue_declare(queue, durable=True),
    )
    refused(
        connection,
        403,
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
        lambda channel: channel.queue_declare("amq.mine"),
    )
    with pika.BlockingConnection(pika.URLParameters(url)) as owner:
        owner.channel().queue_declare(mine, exclusive=True)
        refused(
            connection,
            405,
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{mine}' in vhost '/'. It could be "
            "originally declared on another connection or the exclusive property value does not match that of the "
            "original declaration.",
            lambda channel: channel.queue_declare(mine, exclusive=True),
        )
    assert channel.is_open


def test_publish_to_missing_exchange_closes_the_channel(connection, name):
    missing = name("missing")

    def publish(channel):
        channel.confirm_delivery()
        channel.basic_publish(missing, "", b"")

    refused(connection, 404, f"NOT_FOUND - no exchange '{missing}' in vhost '/'", publish)


def test_unknown_exchange_type_closes_the_connection(connection, name):
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.channel().exchange_declare(name("x"), "nonsense")
    assert closed.value.reply_code == 503
    assert closed.value.reply_text == "COMMAND_INVALID - unknown exchange type 'nonsense'"


def test_large_and_empty_bodies(channel, queue):
    large = bytes(range(256)) * (20 * MIB // 256)
    channel.confirm_delivery()
    for body in (large, b""):
        channel.basic_publish("", queue, body)
        assert get(channel, queue)[2] == body


def test_properties_and_headers_come_back(channel, queue):
    headers = {
        "bool": True,
        "int": -7,
        "long": 2**40,
        "decimal": decimal.Decimal("3.14"),
        "text": "Grüße",
        "bytes": b"\x00\xff",
        "time": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "none": None,
        "list": [1, "two", [3]],
        "table": {"nested": {"deep": 1}},
    }
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers=headers,
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
    channel.basic_publish("", queue, b"", sent)
    got = get(channel, queue)[1]
    assert got.headers == headers
    assert got == sent


def test_prefetch_and_multiple_ack(connection, channel, queue):
    for number in range(6):
        channel.basic_publish("", queue, str(number).encode())
    channel.basic_qos(prefetch_count=3)
    got = []
    channel.basic_consume(queue, lambda _, method, __, body: got.append((method.delivery_tag, body)))
    while len(got) < 3:
        connection.process_data_events(time_limit=10)
    connection.process_data_events(time_limit=0.2)
    assert [body for _, body in got] == [b"0", b"1", b"2"]
    channel.basic_ack(got[2][0], multiple=True)
    while len(got) < 6:
        connection.process_data_events(time_limit=10)
    assert [body for _, body in got[3:]] == [b"3", b"4", b"5"]


def test_nacked_message_returns_to_its_place(channel, queue):
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("", queue, str(number).encode())
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
    channel.basic_nack(tags[1], multiple=True, requeue=True)
    again = [channel.basic_get(queue) for _ in range(3)]
    assert [(body, method.redelivered) for method, _, body in again] == [(b"0", True), (b"1", True), (b"2", False)]
    channel.basic_reject(again[0][0].delivery_tag, requeue=False)
    channel.basic_recover(requeue=True)
    assert channel.basic_get(queue)[2] == b"1"


def test_cancel_by_client_and_by_broker(connection, channel, name):
    queue = name("short-lived")
    channel.queue_declare(queue)
    told = []
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    own = channel.basic_consume(queue, lambda *_: None)
    channel.basic_cancel(own)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 0
    tag = channel.basic_consume(queue, lambda *_: None)
    connection.channel().queue_delete(queue)
    while not told:
        connection.process_data_events(time_limit=10)
    assert told == [tag]


def test_server_named_exclusive_queue_goes_with_its_connection(url, connection, channel):
    with pika.BlockingConnection(pika.URLParameters(url)) as owner:
        queue = owner.channel().queue_declare("", exclusive=True).method.queue
        assert queue.startswith("amq.gen-")
    refused(
        connection,
        404,
        f"NOT_FOUND - no queue '{queue}' in vhost '/'",
        lambda channel: channel.queue_declare(queue, passive=True),
    )


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
    channel.queue_bind(queue, exchange, key, arguments)
    channel.confirm_delivery()
    for routing_key, headers in hits:
        channel.basic_publish(exchange, routing_key, b"", pika.BasicProperties(headers=headers), mandatory=True)
    for routing_key, headers in misses:
        with pytest.raises(UnroutableError):
            channel.basic_publish(exchange, routing_key, b"", pika.BasicProperties(headers=headers), mandatory=True)
    assert channel.queue_purge(queue).method.message_count == len(hits)


def test_many_channels_on_one_connection(connection, queue):
    channels = [connection.channel() for _ in range(200)]
    for number, channel in enumerate(channels):
        channel.confirm_delivery()
        channel.basic_publish("", queue, str(number).encode())
    bodies = {channel.basic_get(queue, auto_ack=True)[2] for channel in channels}
    assert bodies == {str(number).encode() for number in range(200)}

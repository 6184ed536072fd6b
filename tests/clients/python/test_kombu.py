"""The stories through kombu, as Celery and oslo.messaging use it."""

import socket
import uuid

import pytest
from amqp import exceptions
from kombu import Connection, Consumer, Exchange, Producer, Queue

MIB = 1024 * 1024


@pytest.fixture
def connection(url):
    with Connection(url.replace("amqp://", "pyamqp://")) as connection:
        yield connection


@pytest.fixture
def channel(connection):
    return connection.channel()


@pytest.fixture
def queue(channel, name):
    """A bound queue of a direct exchange of its own. Not exclusive, as kombu makes those auto-delete too."""
    exchange = Exchange(name("x"), "direct", durable=False, auto_delete=True)
    bound = Queue(name("q"), exchange, routing_key="key", durable=False)(channel)
    bound.declare()
    yield bound
    bound.delete()


@pytest.fixture
def producer(channel, queue):
    return Producer(channel, exchange=queue.exchange, routing_key="key")


def collect(connection, channel, queue, count, **options):
    """Consumes this many messages."""
    got = []
    with Consumer(channel, [queue], on_message=got.append, **options):
        while len(got) < count:
            connection.drain_events(timeout=10)
    return got


def test_json_round_trip_with_ack(connection, channel, queue, producer):
    tasks = [{"id": number, "args": ["ü", None, 1.5]} for number in range(3)]
    for task in tasks:
        producer.publish(task, serializer="json")
    got = collect(connection, channel, queue, 3)
    assert [message.payload for message in got] == tasks
    for message in got:
        message.ack()
    assert queue.get() is None


def test_compressed_payload(queue, producer):
    producer.publish({"text": "x" * 10_000}, serializer="json", compression="zlib")
    message = queue.get()
    assert message.payload == {"text": "x" * 10_000}
    message.ack()


def test_confirmed_publish(url, name):
    options = {"confirm_publish": True}
    with Connection(url.replace("amqp://", "pyamqp://"), transport_options=options) as connection:
        queue = Queue(name("q"), durable=False, exclusive=True)(connection.default_channel)
        queue.declare()
        producer = Producer(connection.default_channel)
        for number in range(20):
            producer.publish(number, routing_key=queue.name, delivery_mode=2)
        assert queue.purge() == 20


def test_unroutable_mandatory_publish_is_returned(url, name):
    options = {"confirm_publish": True}
    with Connection(url.replace("amqp://", "pyamqp://"), transport_options=options) as connection:
        returned = []
        producer = Producer(connection.default_channel, on_return=lambda *event: returned.append(event))
        producer.publish("back", routing_key=name("nowhere"), mandatory=True)
        (error, exchange, _, message), = returned
        assert (error.reply_code, error.reply_text, exchange) == (312, "NO_ROUTE", "")
        assert message.body == "back"


def test_rpc_over_a_reply_queue(url, connection, channel, queue, producer):
    replies = Queue(exclusive=True, durable=False)(channel)
    replies.declare()
    request = str(uuid.uuid4())
    producer.publish({"number": 7}, reply_to=replies.name, correlation_id=request)
    (asked,) = collect(connection, channel, queue, 1, no_ack=True)
    answer = {"square": asked.payload["number"] ** 2}
    properties = asked.properties
    Producer(channel).publish(
        answer, routing_key=properties["reply_to"], correlation_id=properties["correlation_id"]
    )
    (reply,) = collect(connection, channel, replies, 1, no_ack=True, auto_declare=False)
    assert (reply.properties["correlation_id"], reply.payload) == (request, {"square": 49})


def test_get_and_get_empty(queue, producer):
    assert queue.get() is None
    producer.publish("1")
    message = queue.get(no_ack=True)
    assert message.payload == "1"


def test_requeue_and_reject(queue, producer):
    producer.publish("1")
    producer.publish("2")
    first = queue.get()
    first.requeue()
    again = queue.get()
    assert again.payload == "1" and again.delivery_info["redelivered"]
    again.reject()
    assert queue.get().payload == "2"


def test_prefetch(connection, channel, queue, producer):
    for number in range(5):
        producer.publish(number)
    got = []
    with Consumer(channel, [queue], on_message=got.append, prefetch_count=2):
        while len(got) < 2:
            connection.drain_events(timeout=10)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)
        for message in got[:2]:
            message.ack()
        while len(got) < 4:
            connection.drain_events(timeout=10)
    assert [message.payload for message in got] == [0, 1, 2, 3]


def test_errors_close_the_channel_only(connection, name):
    missing = name("missing")
    with pytest.raises(exceptions.NotFound) as closed:
        Queue(missing)(connection.channel()).queue_declare(passive=True)
    assert closed.value.reply_text == f"NOT_FOUND - no queue '{missing}' in vhost '/'"
    queue = Queue(name("q"), durable=False, auto_delete=True)
    queue(connection.channel()).declare()
    queue.durable = True
    with pytest.raises(exceptions.PreconditionFailed) as closed:
        queue(connection.channel()).declare()
    assert "inequivalent arg 'durable'" in closed.value.reply_text
    queue(connection.channel()).delete()


def test_large_and_empty_bodies(queue, producer):
    for body in (b"\xab" * (20 * MIB), b""):
        producer.publish(body, content_type="application/octet-stream", content_encoding="binary")
        got = queue.get(no_ack=True).body
        assert (got.encode() if isinstance(got, str) else got) == body


def test_headers_and_priority(queue, producer):
    headers = {"task": "add", "retries": 0, "eta": None, "argsrepr": "(1, 2)", "nested": {"list": [1, 2]}}
    producer.publish("", headers=headers, priority=3, expiration=60)
    message = queue.get(no_ack=True)
    assert message.headers == headers
    assert message.properties["priority"] == 3
    assert message.properties["expiration"] == "60000"


def test_fanout_reaches_every_subscriber(channel, name):
    exchange = Exchange(name("fanout"), "fanout", durable=False, auto_delete=True)
    queues = [Queue(name(f"q{number}"), exchange, durable=False, exclusive=True)(channel) for number in range(3)]
    for queue in queues:
        queue.declare()
    Producer(channel, exchange=exchange).publish("all")
    assert [queue.get(no_ack=True).payload for queue in queues] == ["all"] * 3


def test_topic_with_several_wildcards(channel, name):
    exchange = Exchange(name("topic"), "topic", durable=False, auto_delete=True)
    queue = Queue(name("q"), exchange, routing_key="#.task.*.done.#", durable=False, exclusive=True)(channel)
    queue.declare()
    producer = Producer(channel, exchange=exchange)
    for key in ("task.1.done", "celery.task.2.done.ok", "task.done", "task.3.4.done"):
        producer.publish(key, routing_key=key)
    assert [queue.get(no_ack=True).payload for _ in range(2)] == ["task.1.done", "celery.task.2.done.ok"]
    assert queue.get() is None


def test_ensure_and_pools(url, name):
    """How services publish: from a pool, with retries."""
    from kombu.pools import connections, producers

    connection = Connection(url.replace("amqp://", "pyamqp://"))
    queue = Queue(name("pooled"), durable=False, auto_delete=False)
    for number in range(10):
        with producers[connection].acquire(block=True, timeout=10) as producer:
            producer.publish(number, routing_key=queue.name, declare=[queue], retry=True)
    with connections[connection].acquire(block=True, timeout=10) as pooled:
        bound = queue(pooled.default_channel)
        assert [bound.get(no_ack=True).payload for _ in range(10)] == list(range(10))
        bound.delete()
    connections[connection].force_close_all()


def test_simple_queue(connection, name):
    simple = connection.SimpleQueue(name("simple"), queue_opts={"durable": False}, exchange_opts={"durable": False})
    simple.put({"hello": "warren"})
    message = simple.get(block=True, timeout=10)
    assert message.payload == {"hello": "warren"}
    message.ack()
    simple.close()
    simple.queue.delete()


def test_heartbeat(url):
    with Connection(url.replace("amqp://", "pyamqp://"), heartbeat=4) as connection:
        connection.connect()
        for _ in range(5):
            connection.heartbeat_check()
        assert connection.connected

"""The stories through aio-pika. Each test is a coroutine of its own event loop."""

import asyncio
import contextlib
import functools

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError, PublishError
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource

MIB = 1024 * 1024


def story(coroutine):
    """Runs an async test to its end."""

    @functools.wraps(coroutine)
    def run(*arguments, **options):
        asyncio.run(asyncio.wait_for(coroutine(*arguments, **options), 50))

    return run


@contextlib.asynccontextmanager
async def connected(url, **options):
    """A connection and a channel on it."""
    connection = await aio_pika.connect(url)
    async with connection:
        yield connection, await connection.channel(**options)


async def publish(channel, queue, body, **properties):
    await channel.default_exchange.publish(Message(body, **properties), queue.name)


async def collect(queue, count, **options):
    """Consumes this many messages."""
    got, complete = [], asyncio.Event()

    async def on_message(message):
        got.append(message)
        if len(got) >= count:
            complete.set()

    tag = await queue.consume(on_message, **options)
    await asyncio.wait_for(complete.wait(), 10)
    return tag, got


@story
async def test_publish_consume_ack(url):
    async with connected(url) as (connection, channel):
        queue = await channel.declare_queue(exclusive=True)
        for number in range(3):
            await publish(channel, queue, str(number).encode())
        _, got = await collect(queue, 3)
        assert [message.body for message in got] == [b"0", b"1", b"2"]
        for message in got:
            await message.ack()
        await channel.close()
        onlooker = await connection.channel()
        queue = await onlooker.declare_queue(queue.name, passive=True)
        assert queue.declaration_result.message_count == 0


@story
async def test_confirms_for_routable_and_unroutable(url, name):
    async with connected(url, on_return_raises=True) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        await publish(channel, queue, b"routed", delivery_mode=DeliveryMode.PERSISTENT)
        nowhere = name("nowhere")
        await channel.default_exchange.publish(Message(b"dropped"), nowhere, mandatory=False)
        with pytest.raises(PublishError) as refused:
            await channel.default_exchange.publish(Message(b"returned"), nowhere)
        returned = refused.value.message
        assert (returned.delivery.reply_code, returned.delivery.reply_text) == (312, "NO_ROUTE")
        assert returned.body == b"returned"


@story
async def test_rejected_publish_is_nacked(url):
    async with connected(url) as (_, channel):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await channel.declare_queue(exclusive=True, arguments=arguments)
        await publish(channel, queue, b"fits")
        with pytest.raises(DeliveryError):
            await publish(channel, queue, b"too much")


@story
async def test_many_confirms_in_flight(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        await asyncio.gather(*(publish(channel, queue, str(number).encode()) for number in range(500)))
        assert (await queue.purge()).message_count == 500


@story
async def test_rpc_over_a_reply_queue(url):
    async with connected(url) as (_, client), connected(url) as (_, server):
        requests = await server.declare_queue()
        replies = await client.declare_queue(exclusive=True)

        async def serve(request):
            async with request.process():
                reply = Message(request.body.upper(), correlation_id=request.correlation_id)
                await server.default_exchange.publish(reply, request.reply_to)

        await requests.consume(serve)
        await publish(client, requests, b"question", reply_to=replies.name, correlation_id="42")
        _, (reply,) = await collect(replies, 1, no_ack=True)
        assert (reply.correlation_id, reply.body) == ("42", b"QUESTION")
        await requests.delete(if_unused=False)


@story
async def test_get_and_get_empty(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        assert await queue.get(fail=False) is None
        await publish(channel, queue, b"1")
        await publish(channel, queue, b"2")
        message = await queue.get(no_ack=True)
        assert (message.body, message.message_count, message.redelivered) == (b"1", 1, False)


@story
async def test_transactions(url):
    async with connected(url, publisher_confirms=False) as (connection, channel):
        queue = await channel.declare_queue(auto_delete=True)
        onlooker = await (await connection.channel()).get_queue(queue.name)
        transaction = channel.transaction()
        await transaction.select()
        await publish(channel, queue, b"rolled back")
        await transaction.rollback()
        await publish(channel, queue, b"committed")
        assert await onlooker.get(fail=False) is None
        await transaction.commit()
        assert (await onlooker.get(no_ack=True)).body == b"committed"
        assert await onlooker.get(fail=False) is None
        await onlooker.delete()


@story
async def test_errors_close_the_channel_only(url, name):
    async with connected(url) as (connection, channel), connected(url) as (_, owner):
        queue = await channel.declare_queue(name("q"), auto_delete=True)
        mine = await owner.declare_queue(name("mine"), exclusive=True)
        missing = name("missing")
        cases = [
            (
                ChannelNotFoundEntity,
                f"NOT_FOUND - no queue '{missing}' in vhost '/'",
                dict(name=missing, passive=True),
            ),
            (
                ChannelPreconditionFailed,
                f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue.name}' in vhost '/': "
                "received 'true' but current is 'false'",
                dict(name=queue.name, durable=True, auto_delete=True),
            ),
            (
                ChannelAccessRefused,
                "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
                dict(name="amq.mine"),
            ),
            (
                ChannelLockedResource,
                f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{mine.name}' in vhost '/'. It could "
                "be originally declared on another connection or the exclusive property value does not match that of "
                "the original declaration.",
                dict(name=mine.name, exclusive=True),
            ),
        ]
        for error, text, declare in cases:
            refused = await connection.channel()
            with pytest.raises(error) as closed:
                await refused.declare_queue(**declare)
            assert text in str(closed.value)
            assert not connection.is_closed
        await publish(channel, queue, b"still open")
        await queue.delete(if_empty=False)


@story
async def test_large_and_empty_bodies(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        for body in (bytes(range(256)) * (20 * MIB // 256), b""):
            await publish(channel, queue, body)
            assert (await queue.get(no_ack=True)).body == body


@story
async def test_properties_and_headers_come_back(url):
    headers = {
        "bool": True,
        "int": -7,
        "long": 2**40,
        "double": 2.5,
        "text": "Grüße",
        "none": None,
        "list": [1, "two", [3]],
        "table": {"nested": {"deep": 1}},
    }
    sent = dict(
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=5,
        correlation_id="correlation",
        reply_to="reply",
        expiration=60,
        message_id="message",
        type="type",
        user_id="guest",
        app_id="app",
    )
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        await publish(channel, queue, b"", headers=headers, timestamp=1_700_000_000, **sent)
        message = await queue.get(no_ack=True)
    assert message.headers == headers
    assert message.timestamp.timestamp() == 1_700_000_000
    assert {field: getattr(message, field) for field in sent} == sent


@story
async def test_prefetch_and_multiple_ack(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        for number in range(6):
            await publish(channel, queue, str(number).encode())
        await channel.set_qos(prefetch_count=3)
        _, got = await collect(queue, 3)
        assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 3
        await got[2].ack(multiple=True)
        while len(got) < 6:
            await asyncio.sleep(0.01)
        assert [message.body for message in got] == [str(number).encode() for number in range(6)]


@story
async def test_nacked_message_returns_to_its_place(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        for number in range(3):
            await publish(channel, queue, str(number).encode())
        await queue.get()
        second = await queue.get()
        await second.nack(multiple=True, requeue=True)
        again = [await queue.get() for _ in range(3)]
        assert [(m.body, m.redelivered) for m in again] == [(b"0", True), (b"1", True), (b"2", False)]
        await again[0].reject(requeue=False)
        await again[1].reject(requeue=True)
        assert (await queue.get()).body == b"1"


@story
async def test_cancel_ends_the_deliveries(url):
    async with connected(url) as (_, channel):
        queue = await channel.declare_queue(exclusive=True)
        await publish(channel, queue, b"1")
        tag, got = await collect(queue, 1, no_ack=True)
        await queue.cancel(tag)
        await publish(channel, queue, b"2")
        assert (await queue.get(no_ack=True)).body == b"2"
        assert len(got) == 1


@story
async def test_server_named_exclusive_queue_goes_with_its_connection(url):
    async with connected(url) as (_, owner):
        queue = (await owner.declare_queue(exclusive=True)).name
        assert queue.startswith("amq.gen-")
    async with connected(url) as (_, channel):
        with pytest.raises(ChannelNotFoundEntity):
            await channel.declare_queue(queue, passive=True)


@pytest.mark.parametrize(
    "kind, key, arguments, hits, misses",
    [
        (ExchangeType.DIRECT, "a", None, [("a", {})], [("b", {})]),
        (ExchangeType.FANOUT, "", None, [("any", {})], []),
        (ExchangeType.TOPIC, "a.*.#", None, [("a.b", {}), ("a.b.c.d", {})], [("a", {}), ("b.a", {})]),
        (ExchangeType.HEADERS, "", {"x-match": "all", "k": 1, "l": "x"}, [("", {"k": 1, "l": "x"})], [("", {"k": 1})]),
        (ExchangeType.HEADERS, "", {"x-match": "any", "k": 1, "l": "x"}, [("", {"k": 1})], [("", {"k": 2})]),
    ],
)
@story
async def test_routing(url, name, kind, key, arguments, hits, misses):
    async with connected(url) as (_, channel):
        exchange = await channel.declare_exchange(name("x"), kind, auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, key, arguments=arguments)
        for routing_key, headers in hits + misses:
            await exchange.publish(Message(b"", headers=headers), routing_key, mandatory=False)
        assert (await queue.purge()).message_count == len(hits)


@story
async def test_exchanges_bound_to_exchanges(url, name):
    async with connected(url) as (_, channel):
        source = await channel.declare_exchange(name("source"), ExchangeType.TOPIC, auto_delete=True)
        target = await channel.declare_exchange(name("target"), ExchangeType.FANOUT, auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await target.bind(source, "logs.#")
        await queue.bind(target)
        await source.publish(Message(b"through both"), "logs.error")
        assert (await queue.get(no_ack=True)).body == b"through both"


@story
async def test_many_channels_on_one_connection(url):
    async with connected(url) as (connection, channel):
        queue = await channel.declare_queue(exclusive=True)
        channels = [await connection.channel() for _ in range(200)]
        await asyncio.gather(*(publish(own, queue, str(n).encode()) for n, own in enumerate(channels)))
        bodies = {(await queue.get(no_ack=True)).body for _ in channels}
        assert bodies == {str(number).encode() for number in range(200)}


@story
async def test_robust_connection_declares_and_consumes(url, name):
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name("robust"), exclusive=True)
        await publish(channel, queue, b"hello")
        async with queue.iterator(timeout=10) as messages:
            async for message in messages:
                async with message.process():
                    assert message.body == b"hello"
                break

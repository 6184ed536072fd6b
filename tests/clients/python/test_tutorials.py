"""What everyone writes first: hello world, publish and subscribe, and a remote call, as small pika programs."""

import threading
import uuid

import pika
import pytest


@pytest.fixture
def connect(url):
    """Opens connections that are closed after the test."""
    opened = []

    def open_one():
        connection = pika.BlockingConnection(pika.URLParameters(url))
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        if connection.is_open:
            connection.close()


def test_hello_world(connect, name):
    queue = name("hello")

    sender = connect().channel()
    sender.queue_declare(queue)
    sender.basic_publish(exchange="", routing_key=queue, body="Hello, warren!")

    received = []

    def on_message(channel, method, properties, body):
        received.append(body.decode())
        channel.stop_consuming()

    receiver = connect().channel()
    receiver.queue_declare(queue)
    receiver.basic_consume(queue, on_message_callback=on_message, auto_ack=True)
    receiver.start_consuming()
    assert received == ["Hello, warren!"]
    receiver.queue_delete(queue)


def test_publish_and_subscribe(connect, name, background, url):
    exchange = name("announcements")
    publisher = connect().channel()
    publisher.exchange_declare(exchange, exchange_type="fanout")
    heard = {"one": [], "two": []}
    listening = [threading.Event(), threading.Event()]

    def listen(who, ready):
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            own = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(own, exchange)

            def on_message(channel, method, properties, body):
                heard[who].append(body.decode())
                if len(heard[who]) == 3:
                    channel.stop_consuming()

            channel.basic_consume(own, on_message, auto_ack=True)
            ready.set()
            channel.start_consuming()

    threads = [background(listen, who, ready) for who, ready in zip(heard, listening)]
    assert all(ready.wait(10) for ready in listening)
    for text in ("doors open", "please sit", "curtain"):
        publisher.basic_publish(exchange, routing_key="", body=text)
    for thread in threads:
        thread.join(30)
    assert heard == {"one": ["doors open", "please sit", "curtain"], "two": ["doors open", "please sit", "curtain"]}
    publisher.exchange_delete(exchange)


class RemoteSquare:
    """A client that asks for squares and waits for each answer."""

    def __init__(self, connection, requests):
        self.connection = connection
        self.requests = requests
        self.channel = connection.channel()
        self.replies = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.basic_consume(self.replies, self.on_reply, auto_ack=True)
        self.answers = {}

    def on_reply(self, channel, method, properties, body):
        self.answers[properties.correlation_id] = int(body)

    def ask(self, number):
        request = str(uuid.uuid4())
        properties = pika.BasicProperties(reply_to=self.replies, correlation_id=request)
        self.channel.basic_publish("", self.requests, str(number), properties)
        while request not in self.answers:
            self.connection.process_data_events(time_limit=10)
        return self.answers[request]


def test_remote_call(connect, name, background, url):
    requests = name("squares")
    ready = threading.Event()

    def serve():
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.queue_declare(requests)
            channel.basic_qos(prefetch_count=1)

            def on_request(channel, method, properties, body):
                number = int(body)
                reply = pika.BasicProperties(correlation_id=properties.correlation_id)
                channel.basic_publish("", properties.reply_to, str(number * number), reply)
                channel.basic_ack(method.delivery_tag)
                if number == 12:
                    channel.stop_consuming()

            channel.basic_consume(requests, on_request)
            ready.set()
            channel.start_consuming()
            channel.queue_delete(requests)

    background(serve)
    assert ready.wait(10)
    remote = RemoteSquare(connect(), requests)
    assert [remote.ask(number) for number in (3, 5, 12)] == [9, 25, 144]

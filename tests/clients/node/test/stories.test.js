// The stories through amqplib, with promises. AMQP_URL names the broker.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import amqp from 'amqplib';

const host = process.env.AMQP_HOST ?? '127.0.0.1';
const port = process.env.AMQP_PORT ?? '5672';
const URL = process.env.AMQP_URL ?? `amqp://guest:guest@${host}:${port}/%2f`;
const MIB = 1024 * 1024;
const PATIENCE_MS = 10_000;

const name = (base) => `${base}-${randomUUID().slice(0, 13)}`;

/** Connections that a test opened; closed after it. */
let opened = [];

async function connect() {
  const connection = await amqp.connect(URL);
  connection.on('error', () => {});
  opened.push(connection);
  return connection;
}

async function channelOf(connection, kind = 'createChannel') {
  const channel = await connection[kind]();
  channel.on('error', () => {});
  return channel;
}

/** A message that is there or comes soon. */
async function get(channel, queue, options) {
  const deadline = Date.now() + PATIENCE_MS;
  while (Date.now() < deadline) {
    const message = await channel.get(queue, options);
    if (message) return message;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.fail(`no message came to ${queue}`);
}

/** Consumes this many messages. */
function collect(channel, queue, count, options) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const timer = setTimeout(() => reject(new Error(`${messages.length} of ${count} messages came`)), PATIENCE_MS);
    channel
      .consume(
        queue,
        (message) => {
          messages.push(message);
          if (messages.length !== count) return;
          clearTimeout(timer);
          resolve(messages);
        },
        options,
      )
      .catch(reject);
  });
}

const bodies = (messages) => messages.map((message) => message.content.toString());

describe('amqplib', { timeout: 120_000 }, () => {
  let connection;
  let channel;
  let queue;

  before(async () => {
    connection = await amqp.connect(URL);
  });
  after(() => connection.close());

  const story = (title, run) =>
    test(title, async () => {
      channel = await channelOf(connection, 'createConfirmChannel');
      ({ queue } = await channel.assertQueue('', { exclusive: true }));
      await run();
      await channel.close().catch(() => {});
    });

  afterEach(async () => {
    await Promise.all(opened.map((connection) => connection.close().catch(() => {})));
    opened = [];
  });

  async function publish(...texts) {
    for (const text of texts) channel.sendToQueue(queue, Buffer.from(text));
    await channel.waitForConfirms();
  }

  story('published messages are consumed in order and gone when acked', async () => {
    await publish('1', '2', '3');
    const messages = await collect(channel, queue, 3);
    assert.deepEqual(bodies(messages), ['1', '2', '3']);
    for (const message of messages) channel.ack(message);
    await channel.recover();
    assert.equal((await channel.checkQueue(queue)).messageCount, 0);
  });

  story('routable and unroutable publishes are confirmed', async () => {
    const confirmed = (exchange, key) =>
      new Promise((resolve, reject) => {
        channel.publish(exchange, key, Buffer.from('x'), {}, (error) => (error ? reject(error) : resolve()));
      });
    await confirmed('', queue);
    await confirmed('', name('nowhere'));
    await confirmed('amq.fanout', '');
  });

  story('a mandatory message is returned before its ack', async () => {
    const events = [];
    channel.on('return', (message) => events.push(message));
    await new Promise((resolve) => {
      channel.publish('', name('nowhere'), Buffer.from('back'), { mandatory: true, messageId: 'm' }, () => {
        events.push('ack');
        resolve();
      });
    });
    const [returned, ack] = events;
    assert.equal(ack, 'ack');
    assert.equal(returned.fields.replyCode, 312);
    assert.equal(returned.fields.replyText, 'NO_ROUTE');
    assert.equal(returned.properties.messageId, 'm');
    assert.equal(returned.content.toString(), 'back');
  });

  story('a publish that the queue rejects is nacked', async () => {
    const full = name('full');
    const args = { 'x-overflow': 'reject-publish' };
    await channel.assertQueue(full, { exclusive: true, maxLength: 1, arguments: args });
    const send = () => new Promise((resolve) => channel.sendToQueue(full, Buffer.from('x'), {}, resolve));
    assert.equal(await send(), null);
    assert.ok((await send()) instanceof Error);
  });

  story('a remote call is answered through a reply queue', async () => {
    const server = await channelOf(await connect());
    const requests = name('rpc');
    await server.assertQueue(requests, { autoDelete: true });
    await server.consume(requests, (request) => {
      const { replyTo, correlationId } = request.properties;
      server.sendToQueue(replyTo, Buffer.from(request.content.toString().toUpperCase()), { correlationId });
      server.ack(request);
    });
    channel.sendToQueue(requests, Buffer.from('question'), { replyTo: queue, correlationId: '42' });
    const [reply] = await collect(channel, queue, 1, { noAck: true });
    assert.equal(reply.properties.correlationId, '42');
    assert.equal(reply.content.toString(), 'QUESTION');
  });

  story('direct reply-to needs no queue', async () => {
    const server = await channelOf(await connect());
    const { queue: requests } = await server.assertQueue('', { exclusive: true });
    await server.consume(requests, (request) => {
      server.sendToQueue(request.properties.replyTo, Buffer.from('pong'));
      server.ack(request);
    });
    const replies = collect(channel, 'amq.rabbitmq.reply-to', 1, { noAck: true });
    await channel.checkExchange('amq.direct');
    channel.sendToQueue(requests, Buffer.from('ping'), { replyTo: 'amq.rabbitmq.reply-to' });
    assert.deepEqual(bodies(await replies), ['pong']);
  });

  story('get finds messages and tells when there are none', async () => {
    assert.equal(await channel.get(queue), false);
    await publish('1', '2');
    const message = await channel.get(queue, { noAck: true });
    assert.equal(message.content.toString(), '1');
    assert.equal(message.fields.messageCount, 1);
    assert.equal(message.fields.redelivered, false);
  });

  /** The action must close its channel with this code and text; the connection stays. */
  async function refused(code, text, action) {
    const channel = await connection.createChannel();
    const failed = once(channel, 'error');
    await assert.rejects(action(channel));
    const [error] = await failed;
    assert.equal(error.code, code);
    assert.ok(error.message.includes(text), error.message);
    await (await connection.createChannel()).close();
  }

  story('errors close the channel only, with their text', async () => {
    const missing = name('missing');
    await refused(404, `NOT_FOUND - no queue '${missing}' in vhost '/'`, (c) => c.checkQueue(missing));
    await refused(404, `NOT_FOUND - no exchange '${missing}' in vhost '/'`, (c) => c.checkExchange(missing));
    const q = name('q');
    await channel.assertQueue(q, { durable: false });
    await refused(
      406,
      `PRECONDITION_FAILED - inequivalent arg 'durable' for queue '${q}' in vhost '/': ` +
        `received 'true' but current is 'false'`,
      (c) => c.assertQueue(q, { durable: true }),
    );
    await channel.deleteQueue(q);
    await refused(403, `ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'`, (c) =>
      c.assertQueue('amq.mine'),
    );
    const mine = name('mine');
    const owner = await channelOf(await connect());
    await owner.assertQueue(mine, { exclusive: true });
    await refused(405, `RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '${mine}' in vhost '/'.`, (c) =>
      c.assertQueue(mine, { exclusive: true }),
    );
  });

  test('a refused login says so', async () => {
    await assert.rejects(amqp.connect(URL.replace('guest:guest', 'guest:wrong')), /403 \(ACCESS-REFUSED\)/);
  });

  test('an unknown exchange type closes the connection', async () => {
    const own = await connect();
    const closed = once(own, 'error');
    const c = await channelOf(own);
    await assert.rejects(c.assertExchange(name('x'), 'nonsense'));
    const [error] = await closed;
    assert.equal(error.code, 503);
    assert.match(error.message, /COMMAND_INVALID - unknown exchange type 'nonsense'/);
  });

  story('large and empty bodies pass', async () => {
    const large = Buffer.alloc(20 * MIB, 'abcdefg');
    for (const body of [large, Buffer.alloc(0)]) {
      channel.sendToQueue(queue, body);
      await channel.waitForConfirms();
      const { content } = await channel.get(queue, { noAck: true });
      assert.ok(body.equals(content));
    }
  });

  story('properties and headers come back', async () => {
    const headers = {
      bool: true,
      int: -7,
      long: 2 ** 40,
      double: 2.5,
      text: 'Grüße',
      bytes: Buffer.from([0, 255]),
      none: null,
      list: [1, 'two', [3]],
      table: { nested: { deep: 1 } },
      timestamp: { '!': 'timestamp', value: 1_700_000_000 },
      decimal: { '!': 'decimal', value: { digits: 314, places: 2 } },
      float: { '!': 'float', value: 1.5 },
      short: { '!': 'short', value: -3 },
      byte: { '!': 'byte', value: -4 },
    };
    const properties = {
      contentType: 'text/plain',
      contentEncoding: 'utf-8',
      deliveryMode: 2,
      priority: 5,
      correlationId: 'correlation',
      replyTo: 'reply',
      expiration: '60000',
      messageId: 'message',
      timestamp: 1_700_000_000,
      type: 'type',
      userId: 'guest',
      appId: 'app',
    };
    channel.sendToQueue(queue, Buffer.alloc(0), { ...properties, headers });
    await channel.waitForConfirms();
    const got = (await channel.get(queue, { noAck: true })).properties;
    for (const [key, value] of Object.entries(properties)) assert.deepEqual(got[key], value, key);
    const plain = { ...headers, float: 1.5, short: -3, byte: -4 };
    assert.deepEqual(got.headers, plain);
  });

  story('prefetch holds back until acks come', async () => {
    await publish('1', '2', '3', '4', '5', '6');
    await channel.prefetch(3);
    const messages = await collect(channel, queue, 3);
    assert.equal((await channel.checkQueue(queue)).messageCount, 3);
    channel.ack(messages[2], true);
    const deadline = Date.now() + PATIENCE_MS;
    while (messages.length < 6 && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 5));
    assert.deepEqual(bodies(messages), ['1', '2', '3', '4', '5', '6']);
  });

  story('nacked messages return to their place', async () => {
    await publish('1', '2', '3');
    await channel.get(queue);
    const second = await channel.get(queue);
    channel.nack(second, true, true);
    const again = [await channel.get(queue), await channel.get(queue), await channel.get(queue)];
    assert.deepEqual(bodies(again), ['1', '2', '3']);
    assert.deepEqual(again.map((message) => message.fields.redelivered), [true, true, false]);
    channel.reject(again[0], false);
    channel.reject(again[1], true);
    assert.equal((await get(channel, queue)).content.toString(), '2');
  });

  story('consumers can be cancelled by either side', async () => {
    const q = name('short-lived');
    await channel.assertQueue(q);
    const { consumerTag } = await channel.consume(q, () => assert.fail('nothing is delivered'));
    assert.match(consumerTag, /^amq\.ctag-/);
    await channel.cancel(consumerTag);
    assert.equal((await channel.checkQueue(q)).consumerCount, 0);
    const told = new Promise((resolve) => channel.consume(q, resolve));
    await channel.checkQueue(q);
    await channel.deleteQueue(q);
    assert.equal(await told, null);
  });

  story('an exclusive queue goes with its connection', async () => {
    const owner = await amqp.connect(URL);
    const { queue: mine } = await (await owner.createChannel()).assertQueue('', { exclusive: true });
    assert.match(mine, /^amq\.gen-/);
    await owner.close();
    await refused(404, `NOT_FOUND - no queue '${mine}' in vhost '/'`, (c) => c.checkQueue(mine));
  });

  const routes = [
    ['direct', 'a', {}, [['a', {}]], [['b', {}]]],
    ['fanout', '', {}, [['any', {}]], []],
    ['topic', 'a.*.#', {}, [['a.b', {}], ['a.b.c.d', {}]], [['a', {}], ['b.a', {}]]],
    ['headers', '', { 'x-match': 'all', k: 1, l: 'x' }, [['', { k: 1, l: 'x' }]], [['', { k: 1 }]]],
    ['headers', '', { 'x-match': 'any', k: 1, l: 'x' }, [['', { k: 1 }]], [['', { k: 2 }]]],
  ];
  for (const [kind, key, args, hits, misses] of routes) {
    story(`${kind} exchange routes (${JSON.stringify(args)})`, async () => {
      const { exchange } = await channel.assertExchange(name(kind), kind, { autoDelete: true });
      await channel.bindQueue(queue, exchange, key, args);
      for (const [routingKey, headers] of [...hits, ...misses]) {
        channel.publish(exchange, routingKey, Buffer.from(''), { headers });
      }
      await channel.waitForConfirms();
      assert.equal((await channel.purgeQueue(queue)).messageCount, hits.length);
    });
  }

  test('an exchange can be bound to another', async () => {
    const c = await channelOf(await connect(), 'createConfirmChannel');
    const source = name('source');
    const target = name('target');
    await c.assertExchange(source, 'topic', { autoDelete: true });
    await c.assertExchange(target, 'fanout', { autoDelete: true });
    const { queue: q } = await c.assertQueue('', { exclusive: true });
    await c.bindExchange(target, source, 'logs.#');
    await c.bindQueue(q, target, '');
    c.publish(source, 'logs.error', Buffer.from('through both'));
    await c.waitForConfirms();
    assert.equal((await c.get(q, { noAck: true })).content.toString(), 'through both');
  });

  test('many channels share a connection', async () => {
    const own = await connect();
    const channels = await Promise.all(Array.from({ length: 200 }, () => channelOf(own, 'createConfirmChannel')));
    const { queue: q } = await channels[0].assertQueue('', { exclusive: true });
    channels.forEach((c, number) => c.sendToQueue(q, Buffer.from(String(number))));
    await Promise.all(channels.map((c) => c.waitForConfirms()));
    const got = new Set();
    for (const c of channels) got.add((await c.get(q, { noAck: true })).content.toString());
    assert.equal(got.size, 200);
  });
});

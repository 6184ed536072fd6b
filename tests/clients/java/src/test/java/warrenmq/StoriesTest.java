package warrenmq;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** The stories through the RabbitMQ Java client. AMQP_URL, or AMQP_HOST and AMQP_PORT, name the broker. */
@Timeout(60)
class StoriesTest {
    private static final long PATIENCE_S = 10;
    private static final int LARGE_BYTES = 20 * 1024 * 1024;

    private final List<Connection> opened = new ArrayList<>();
    private Connection connection;
    private Channel channel;
    private String queue;

    private static ConnectionFactory factory() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setAutomaticRecoveryEnabled(false);
        String url = System.getenv("AMQP_URL");
        if (url != null) {
            factory.setUri(url);
        } else {
            factory.setHost(System.getenv().getOrDefault("AMQP_HOST", "127.0.0.1"));
            factory.setPort(Integer.parseInt(System.getenv().getOrDefault("AMQP_PORT", "5672")));
        }
        return factory;
    }

    private Connection connect() throws Exception {
        Connection connection = factory().newConnection();
        opened.add(connection);
        return connection;
    }

    /** A name that no other test and no other run uses. */
    private static String name(String base) {
        return base + "-" + UUID.randomUUID();
    }

    @BeforeEach
    void open() throws Exception {
        connection = connect();
        channel = connection.createChannel();
        queue = channel.queueDeclare().getQueue();
    }

    @AfterEach
    void close() {
        opened.forEach(Connection::abort);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    private void publish(String... texts) throws Exception {
        channel.confirmSelect();
        for (String text : texts) {
            channel.basicPublish("", queue, null, bytes(text));
        }
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
    }

    private GetResponse get(boolean autoAck) throws IOException {
        GetResponse response = channel.basicGet(queue, autoAck);
        assertNotNull(response, "a message is there");
        return response;
    }

    private static BlockingQueue<Delivery> consume(Channel channel, String queue, boolean autoAck) throws IOException {
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, autoAck, (tag, delivery) -> deliveries.add(delivery), tag -> {});
        return deliveries;
    }

    private static Delivery next(BlockingQueue<Delivery> deliveries) throws InterruptedException {
        Delivery delivery = deliveries.poll(PATIENCE_S, TimeUnit.SECONDS);
        assertNotNull(delivery, "a delivery comes");
        return delivery;
    }

    @Test
    void publishedMessagesAreConsumedAndGoneWhenAcked() throws Exception {
        publish("1", "2", "3");
        BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
        for (String want : List.of("1", "2", "3")) {
            Delivery delivery = next(deliveries);
            assertEquals(want, text(delivery.getBody()));
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }
        channel.basicRecover();
        assertEquals(0, channel.queueDeclarePassive(queue).getMessageCount());
    }

    @Test
    void routableAndUnroutablePublishesAreConfirmed() throws Exception {
        channel.confirmSelect();
        channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes("routed"));
        channel.basicPublish("", name("nowhere"), MessageProperties.PERSISTENT_BASIC, bytes("dropped"));
        assertTrue(channel.waitForConfirms(PATIENCE_S * 1000));
    }

    @Test
    void returnComesBeforeItsAck() throws Exception {
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        channel.addReturnListener(back -> events.add(back.getReplyCode() + back.getReplyText() + text(back.getBody())));
        channel.addConfirmListener((tag, multiple) -> events.add("ack " + tag), (tag, multiple) -> events.add("nack"));
        channel.confirmSelect();
        channel.basicPublish("", name("nowhere"), true, null, bytes(" back"));
        assertEquals("312NO_ROUTE back", events.poll(PATIENCE_S, TimeUnit.SECONDS));
        assertEquals("ack 1", events.poll(PATIENCE_S, TimeUnit.SECONDS));
    }

    @Test
    void rejectedPublishIsNacked() throws Exception {
        Map<String, Object> arguments = Map.of("x-max-length", 1, "x-overflow", "reject-publish");
        String full = channel.queueDeclare("", false, true, true, arguments).getQueue();
        channel.confirmSelect();
        channel.basicPublish("", full, null, bytes("fits"));
        assertTrue(channel.waitForConfirms(PATIENCE_S * 1000));
        channel.basicPublish("", full, null, bytes("too much"));
        assertFalse(channel.waitForConfirms(PATIENCE_S * 1000));
    }

    @Test
    void remoteCallIsAnsweredThroughAReplyQueue() throws Exception {
        Channel server = connect().createChannel();
        String requests = server.queueDeclare("", false, false, true, null).getQueue();
        BlockingQueue<Delivery> asked = consume(server, requests, true);
        BlockingQueue<Delivery> answers = consume(channel, queue, true);
        AMQP.BasicProperties question = new AMQP.BasicProperties.Builder().replyTo(queue).correlationId("42").build();
        channel.basicPublish("", requests, question, bytes("question"));
        Delivery request = next(asked);
        AMQP.BasicProperties properties = request.getProperties();
        AMQP.BasicProperties reply = new AMQP.BasicProperties.Builder().correlationId(properties.getCorrelationId()).build();
        server.basicPublish("", properties.getReplyTo(), reply, bytes("answer"));
        Delivery answer = next(answers);
        assertEquals("42", answer.getProperties().getCorrelationId());
        assertEquals("answer", text(answer.getBody()));
    }

    @Test
    void rpcClientUsesDirectReplyTo() throws Exception {
        Channel server = connect().createChannel();
        String requests = server.queueDeclare().getQueue();
        server.basicConsume(requests, true, (tag, request) -> {
            AMQP.BasicProperties asked = request.getProperties();
            AMQP.BasicProperties answer = new AMQP.BasicProperties.Builder().correlationId(asked.getCorrelationId()).build();
            server.basicPublish("", asked.getReplyTo(), answer, bytes(text(request.getBody()).toUpperCase()));
        }, tag -> {});
        RpcClientParams parameters = new RpcClientParams().channel(channel).exchange("").routingKey(requests).timeout(10_000);
        try (RpcClient client = new RpcClient(parameters)) {
            assertEquals("QUESTION", client.stringCall("question"));
        }
    }

    @Test
    void getFindsMessagesAndTellsWhenThereAreNone() throws Exception {
        assertNull(channel.basicGet(queue, true));
        publish("1", "2");
        GetResponse first = get(true);
        assertEquals("1", text(first.getBody()));
        assertEquals(1, first.getMessageCount());
        assertFalse(first.getEnvelope().isRedeliver());
    }

    @Test
    void transactionsCommitAndRollBack() throws Exception {
        Channel onlooker = connection.createChannel();
        channel.txSelect();
        channel.basicPublish("", queue, null, bytes("rolled back"));
        channel.txRollback();
        channel.basicPublish("", queue, null, bytes("committed"));
        assertNull(onlooker.basicGet(queue, true));
        channel.txCommit();
        assertEquals("committed", text(onlooker.basicGet(queue, true).getBody()));
        assertNull(onlooker.basicGet(queue, true));
    }

    private interface Action {
        void on(Channel channel) throws Exception;
    }

    /** The action must close its channel with this code and text; the connection stays. */
    private void refused(int code, String text, Action action) throws Exception {
        Channel own = connection.createChannel();
        IOException failed = assertThrows(IOException.class, () -> action.on(own));
        ShutdownSignalException cause = (ShutdownSignalException) failed.getCause();
        AMQP.Channel.Close close = (AMQP.Channel.Close) cause.getReason();
        assertEquals(code, close.getReplyCode());
        assertEquals(text, close.getReplyText());
        assertThrows(AlreadyClosedException.class, () -> own.basicQos(1));
        assertTrue(connection.isOpen());
        connection.createChannel().close();
    }

    @Test
    void errorsCloseTheChannelOnly() throws Exception {
        String missing = name("missing");
        String shared = name("shared");
        channel.queueDeclare(shared, false, false, true, null);
        refused(404, "NOT_FOUND - no queue '" + missing + "' in vhost '/'", c -> c.queueDeclarePassive(missing));
        refused(404, "NOT_FOUND - no exchange '" + missing + "' in vhost '/'", c -> c.exchangeDeclarePassive(missing));
        refused(
                406,
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '" + shared
                        + "' in vhost '/': received 'true' but current is 'false'",
                c -> c.queueDeclare(shared, true, false, true, null));
        refused(
                403,
                "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
                c -> c.queueDeclare("amq.mine", false, false, false, null));
        channel.queueDelete(shared);
        String mine = "mine" + System.nanoTime();
        connect().createChannel().queueDeclare(mine, false, true, true, null);
        refused(
                405,
                "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '" + mine + "' in vhost '/'. It could be "
                        + "originally declared on another connection or the exclusive property value does not match that "
                        + "of the original declaration.",
                c -> c.queueDeclare(mine, false, true, true, null));
        publish("still open");
    }

    @Test
    void unknownExchangeTypeClosesTheConnection() throws Exception {
        BlockingQueue<ShutdownSignalException> closed = new ArrayBlockingQueue<>(1);
        connection.addShutdownListener(closed::add);
        assertThrows(IOException.class, () -> channel.exchangeDeclare(name("x"), "nonsense"));
        ShutdownSignalException cause = closed.poll(PATIENCE_S, TimeUnit.SECONDS);
        assertNotNull(cause);
        AMQP.Connection.Close close = (AMQP.Connection.Close) cause.getReason();
        assertEquals(503, close.getReplyCode());
        assertEquals("COMMAND_INVALID - unknown exchange type 'nonsense'", close.getReplyText());
    }

    @Test
    void wrongPasswordIsRefused() throws Exception {
        ConnectionFactory wrong = factory();
        wrong.setPassword("wrong");
        assertThrows(AuthenticationFailureException.class, wrong::newConnection);
    }

    @Test
    void largeAndEmptyBodiesPass() throws Exception {
        byte[] large = new byte[LARGE_BYTES];
        for (int index = 0; index < large.length; index++) {
            large[index] = (byte) (index % 251);
        }
        channel.confirmSelect();
        for (byte[] body : List.of(large, new byte[0])) {
            channel.basicPublish("", queue, null, body);
            channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
            assertArrayEquals(body, get(true).getBody());
        }
    }

    @Test
    void propertiesAndHeadersComeBack() throws Exception {
        Date when = new Date(1_700_000_000_000L);
        Map<String, Object> headers = new HashMap<>();
        headers.put("bool", true);
        headers.put("byte", (byte) -8);
        headers.put("short", (short) -1600);
        headers.put("int", -320_000);
        headers.put("long", 1L << 60);
        headers.put("float", 1.5f);
        headers.put("double", 2.25);
        headers.put("decimal", new BigDecimal("3.14"));
        headers.put("text", "Grüße");
        headers.put("bytes", new byte[] {0, -1});
        headers.put("time", when);
        headers.put("none", null);
        headers.put("list", Arrays.asList(1, "two", List.of(3)));
        headers.put("table", Map.of("nested", Map.of("deep", 1)));
        AMQP.BasicProperties sent = new AMQP.BasicProperties.Builder()
                .contentType("text/plain")
                .contentEncoding("utf-8")
                .headers(headers)
                .deliveryMode(2)
                .priority(5)
                .correlationId("correlation")
                .replyTo("reply")
                .expiration("60000")
                .messageId("message")
                .timestamp(when)
                .type("type")
                .userId("guest")
                .appId("app")
                .clusterId("cluster")
                .build();
        channel.confirmSelect();
        channel.basicPublish("", queue, sent, new byte[0]);
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        AMQP.BasicProperties got = get(true).getProps();
        assertEquals(plain(headers), plain(got.getHeaders()));
        assertEquals(sent.builder().headers(null).build(), got.builder().headers(null).build());
    }

    /** Long strings and byte arrays as text, so that values can be compared. */
    private static Object plain(Object value) {
        if (value instanceof LongString || value instanceof CharSequence) {
            return value.toString();
        }
        if (value instanceof byte[] bytes) {
            return Arrays.toString(bytes);
        }
        if (value instanceof List<?> list) {
            return list.stream().map(StoriesTest::plain).toList();
        }
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> plain = new HashMap<>();
            map.forEach((key, field) -> plain.put(key, plain(field)));
            return plain;
        }
        return value;
    }

    @Test
    void prefetchHoldsBackUntilAcksCome() throws Exception {
        publish("1", "2", "3", "4", "5", "6");
        channel.basicQos(3);
        BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
        next(deliveries);
        next(deliveries);
        Delivery third = next(deliveries);
        assertEquals(3, channel.queueDeclarePassive(queue).getMessageCount());
        assertTrue(deliveries.isEmpty());
        channel.basicAck(third.getEnvelope().getDeliveryTag(), true);
        for (String want : List.of("4", "5", "6")) {
            assertEquals(want, text(next(deliveries).getBody()));
        }
    }

    @Test
    void nackedMessagesReturnToTheirPlace() throws Exception {
        publish("1", "2", "3");
        get(false);
        channel.basicNack(get(false).getEnvelope().getDeliveryTag(), true, true);
        for (String want : List.of("1", "2", "3")) {
            GetResponse again = get(false);
            assertEquals(want, text(again.getBody()));
            assertEquals(!want.equals("3"), again.getEnvelope().isRedeliver());
            channel.basicReject(again.getEnvelope().getDeliveryTag(), false);
        }
        channel.basicRecover(true);
        assertNull(channel.basicGet(queue, true));
    }

    @Test
    void consumersCanBeCancelledByEitherSide() throws Exception {
        String shortLived = channel.queueDeclare(name("short-lived"), false, false, false, null).getQueue();
        String tag = channel.basicConsume(shortLived, (t, delivery) -> {}, t -> {});
        assertTrue(tag.startsWith("amq.ctag-"));
        channel.basicCancel(tag);
        assertEquals(0, channel.queueDeclarePassive(shortLived).getConsumerCount());
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        channel.basicConsume(shortLived, true, "watched", (t, delivery) -> {}, told::add);
        connection.createChannel().queueDelete(shortLived);
        assertEquals("watched", told.poll(PATIENCE_S, TimeUnit.SECONDS));
    }

    @Test
    void exclusiveQueueGoesWithItsConnection() throws Exception {
        Connection owner = connect();
        String mine = owner.createChannel().queueDeclare().getQueue();
        assertTrue(mine.startsWith("amq.gen-"));
        owner.close();
        refused(404, "NOT_FOUND - no queue '" + mine + "' in vhost '/'", c -> c.queueDeclarePassive(mine));
    }

    /** A routing key and headers. */
    record Message(String key, Map<String, Object> headers) {
        Message(String key) {
            this(key, Collections.emptyMap());
        }
    }

    static Stream<Arguments> routes() {
        Map<String, Object> both = Map.of("k", 1, "l", "x");
        Map<String, Object> all = Map.of("x-match", "all", "k", 1, "l", "x");
        Map<String, Object> any = Map.of("x-match", "any", "k", 1, "l", "x");
        Message one = new Message("", Map.of("k", 1));
        return Stream.of(
                Arguments.of("direct", "a", null, List.of(new Message("a")), List.of(new Message("b"))),
                Arguments.of("fanout", "", null, List.of(new Message("any")), List.of()),
                Arguments.of(
                        "topic",
                        "a.*.#",
                        null,
                        List.of(new Message("a.b"), new Message("a.b.c.d")),
                        List.of(new Message("a"), new Message("b.a"))),
                Arguments.of("headers", "", all, List.of(new Message("", both)), List.of(one)),
                Arguments.of("headers", "", any, List.of(one), List.of(new Message("", Map.of("k", 2)))));
    }

    @ParameterizedTest
    @MethodSource("routes")
    void exchangesRoute(String kind, String key, Map<String, Object> arguments, List<Message> hits, List<Message> misses)
            throws Exception {
        String exchange = name(kind);
        channel.exchangeDeclare(exchange, kind, false, true, null);
        channel.queueBind(queue, exchange, key, arguments);
        channel.confirmSelect();
        List<Message> messages = new ArrayList<>(hits);
        messages.addAll(misses);
        for (Message message : messages) {
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().headers(message.headers()).build();
            channel.basicPublish(exchange, message.key(), properties, bytes(""));
        }
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        assertEquals(hits.size(), channel.queuePurge(queue).getMessageCount());
    }

    @Test
    void exchangesCanBeBoundToExchanges() throws Exception {
        String source = name("source");
        String target = name("target");
        channel.exchangeDeclare(source, "topic", false, true, null);
        channel.exchangeDeclare(target, "fanout", false, true, null);
        channel.exchangeBind(target, source, "logs.#");
        channel.queueBind(queue, target, "");
        channel.basicPublish(source, "logs.error", null, bytes("through both"));
        assertEquals("through both", text(next(consume(channel, queue, true)).getBody()));
    }

    @Test
    void manyChannelsShareAConnection() throws Exception {
        List<Channel> channels = new ArrayList<>();
        for (int number = 0; number < 200; number++) {
            Channel own = connection.createChannel();
            own.confirmSelect();
            own.basicPublish("", queue, null, bytes("" + number));
            channels.add(own);
        }
        Set<String> bodies = new HashSet<>();
        for (Channel own : channels) {
            own.waitForConfirmsOrDie(PATIENCE_S * 1000);
        }
        for (Channel own : channels) {
            bodies.add(text(own.basicGet(queue, true).getBody()));
        }
        assertEquals(200, bodies.size());
    }
}

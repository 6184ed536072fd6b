// Package clients tells the client stories through amqp091-go. AMQP_URL names the broker.
package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const patience = 10 * time.Second

func url() string {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	host, port := os.Getenv("AMQP_HOST"), os.Getenv("AMQP_PORT")
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "5672"
	}
	return fmt.Sprintf("amqp://guest:guest@%s:%s/%%2f", host, port)
}

var names atomic.Int64

// name is one that no other test and no other run uses.
func name(base string) string {
	return fmt.Sprintf("%s-%d-%d-%d", base, os.Getpid(), time.Now().UnixNano(), names.Add(1))
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func connect(t *testing.T) *amqp.Connection {
	t.Helper()
	connection := must(amqp.Dial(url()))(t)
	t.Cleanup(func() { connection.Close() })
	return connection
}

func openChannel(t *testing.T, connection *amqp.Connection) *amqp.Channel {
	t.Helper()
	return must(connection.Channel())(t)
}

// exclusive is a server-named queue that goes with the connection.
func exclusive(t *testing.T, channel *amqp.Channel, arguments amqp.Table) string {
	t.Helper()
	return must(channel.QueueDeclare("", false, false, true, false, arguments))(t).Name
}

// start is a connection, a channel in confirm mode and a queue.
func start(t *testing.T) (*amqp.Connection, *amqp.Channel, string) {
	t.Helper()
	connection := connect(t)
	channel := openChannel(t, connection)
	check(t, channel.Confirm(false))
	return connection, channel, exclusive(t, channel, nil)
}

// publish waits for the confirm, and tells whether it was an ack.
func publish(t *testing.T, channel *amqp.Channel, exchange, key string, message amqp.Publishing) bool {
	t.Helper()
	confirmation := must(channel.PublishWithDeferredConfirm(exchange, key, false, false, message))(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return must(confirmation.WaitContext(ctx))(t)
}

func publishAll(t *testing.T, channel *amqp.Channel, queue string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !publish(t, channel, "", queue, amqp.Publishing{Body: []byte(text)}) {
			t.Fatalf("%q was nacked", text)
		}
	}
}

func next(t *testing.T, deliveries <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	select {
	case delivery, open := <-deliveries:
		if !open {
			t.Fatal("the consumer was cancelled")
		}
		return delivery
	case <-time.After(patience):
		t.Fatal("no delivery came")
	}
	panic("unreachable")
}

func get(t *testing.T, channel *amqp.Channel, queue string, autoAck bool) amqp.Delivery {
	t.Helper()
	delivery, ok, err := channel.Get(queue, autoAck)
	check(t, err)
	if !ok {
		t.Fatalf("%s is empty", queue)
	}
	return delivery
}

func empty(t *testing.T, channel *amqp.Channel, queue string) {
	t.Helper()
	if delivery, ok, err := channel.Get(queue, true); err != nil || ok {
		t.Fatalf("%s is not empty: %s, %v", queue, delivery.Body, err)
	}
}

func TestPublishConsumeAck(t *testing.T) {
	_, channel, queue := start(t)
	publishAll(t, channel, queue, "1", "2", "3")
	deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))(t)
	for _, want := range []string{"1", "2", "3"} {
		delivery := next(t, deliveries)
		equal(t, "body", string(delivery.Body), want)
		check(t, delivery.Ack(false))
	}
	check(t, channel.Recover(true))
	equal(t, "left", must(channel.QueueDeclarePassive(queue, false, false, true, false, nil))(t).Messages, 0)
}

func TestConfirmsForRoutableAndUnroutable(t *testing.T) {
	_, channel, queue := start(t)
	for _, key := range []string{queue, name("nowhere")} {
		if !publish(t, channel, "", key, amqp.Publishing{DeliveryMode: amqp.Persistent}) {
			t.Fatalf("publish to %s was nacked", key)
		}
	}
}

func TestMandatoryReturnBeforeItsAck(t *testing.T) {
	_, channel, _ := start(t)
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 1))
	check(t, channel.Publish("", name("nowhere"), true, false, amqp.Publishing{Body: []byte("back"), MessageId: "m"}))
	select {
	case confirm := <-confirms:
		equal(t, "ack", confirm.Ack, true)
	case <-time.After(patience):
		t.Fatal("no confirm came")
	}
	select {
	case returned := <-returns:
		equal(t, "code", returned.ReplyCode, 312)
		equal(t, "text", returned.ReplyText, "NO_ROUTE")
		equal(t, "body", string(returned.Body), "back")
		equal(t, "message id", returned.MessageId, "m")
	default:
		t.Fatal("the return did not come before the ack")
	}
}

func TestRejectedPublishIsNacked(t *testing.T) {
	_, channel, _ := start(t)
	full := exclusive(t, channel, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	equal(t, "first", publish(t, channel, "", full, amqp.Publishing{}), true)
	equal(t, "second", publish(t, channel, "", full, amqp.Publishing{}), false)
}

func TestRPCOverAReplyQueue(t *testing.T) {
	_, client, replies := start(t)
	_, server, requests := start(t)
	asked := must(server.Consume(requests, "", false, false, false, false, nil))(t)
	answers := must(client.Consume(replies, "", true, true, false, false, nil))(t)
	request := amqp.Publishing{Body: []byte("question"), ReplyTo: replies, CorrelationId: "42"}
	check(t, client.Publish("", requests, false, false, request))
	question := next(t, asked)
	answer := amqp.Publishing{Body: bytes.ToUpper(question.Body), CorrelationId: question.CorrelationId}
	check(t, server.Publish("", question.ReplyTo, false, false, answer))
	check(t, question.Ack(false))
	reply := next(t, answers)
	equal(t, "correlation id", reply.CorrelationId, "42")
	equal(t, "answer", string(reply.Body), "QUESTION")
}

func TestGetAndGetEmpty(t *testing.T) {
	_, channel, queue := start(t)
	empty(t, channel, queue)
	publishAll(t, channel, queue, "1", "2")
	first := get(t, channel, queue, true)
	equal(t, "body", string(first.Body), "1")
	equal(t, "left", first.MessageCount, 1)
	equal(t, "redelivered", first.Redelivered, false)
}

func TestTransactions(t *testing.T) {
	connection := connect(t)
	channel, onlooker := openChannel(t, connection), openChannel(t, connection)
	queue := exclusive(t, channel, nil)
	send := func(text string) {
		t.Helper()
		check(t, channel.Publish("", queue, false, false, amqp.Publishing{Body: []byte(text)}))
	}
	check(t, channel.Tx())
	send("rolled back")
	check(t, channel.TxRollback())
	send("committed")
	empty(t, onlooker, queue)
	check(t, channel.TxCommit())
	equal(t, "body", string(get(t, onlooker, queue, true).Body), "committed")
	empty(t, onlooker, queue)
}

// refused wants the action to close its channel with this code and text, and the connection to stay.
func refused(t *testing.T, connection *amqp.Connection, code int, text string, action func(*amqp.Channel) error) {
	t.Helper()
	var closed *amqp.Error
	if err := action(openChannel(t, connection)); !errors.As(err, &closed) {
		t.Fatalf("expected a refusal, got %v", err)
	}
	equal(t, "code", closed.Code, code)
	if !strings.HasPrefix(closed.Reason, text) {
		t.Fatalf("text: got %s, want %s", closed.Reason, text)
	}
	if connection.IsClosed() {
		t.Fatal("the connection is closed too")
	}
	check(t, openChannel(t, connection).Close())
}

func TestErrorsCloseTheChannelOnly(t *testing.T) {
	connection, channel, queue := start(t)
	missing, transient, mine := name("missing"), name("transient"), name("mine")
	must(channel.QueueDeclare(transient, false, true, false, false, nil))(t)
	refused(t, connection, 404, fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '/'", missing),
		func(c *amqp.Channel) error {
			_, err := c.QueueDeclarePassive(missing, false, false, false, false, nil)
			return err
		})
	refused(t, connection, 406,
		fmt.Sprintf("PRECONDITION_FAILED - inequivalent arg 'durable' for queue '%s' in vhost '/': "+
			"received 'true' but current is 'false'", transient),
		func(c *amqp.Channel) error {
			_, err := c.QueueDeclare(transient, true, true, false, false, nil)
			return err
		})
	must(channel.QueueDelete(transient, false, false, false))(t)
	refused(t, connection, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
		func(c *amqp.Channel) error {
			_, err := c.QueueDeclare("amq.mine", false, false, false, false, nil)
			return err
		})
	must(openChannel(t, connect(t)).QueueDeclare(mine, false, false, true, false, nil))(t)
	refused(t, connection, 405,
		fmt.Sprintf("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '%s' in vhost '/'. It could be "+
			"originally declared on another connection or the exclusive property value does not match that of the "+
			"original declaration.", mine),
		func(c *amqp.Channel) error {
			_, err := c.QueueDeclare(mine, false, false, true, false, nil)
			return err
		})
	publishAll(t, channel, queue, "still open")
}

func TestUnknownExchangeTypeClosesTheConnection(t *testing.T) {
	connection := connect(t)
	channel := openChannel(t, connection)
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	if err := channel.ExchangeDeclare(name("x"), "nonsense", false, true, false, false, nil); err == nil {
		t.Fatal("an unknown type was taken")
	}
	select {
	case err := <-closed:
		equal(t, "code", err.Code, 503)
		equal(t, "text", err.Reason, "COMMAND_INVALID - unknown exchange type 'nonsense'")
	case <-time.After(patience):
		t.Fatal("the connection was not closed")
	}
}

func TestLargeAndEmptyBodies(t *testing.T) {
	_, channel, queue := start(t)
	for _, body := range [][]byte{bytes.Repeat([]byte("abcdefgh"), 20<<20/8), {}} {
		if !publish(t, channel, "", queue, amqp.Publishing{Body: body}) {
			t.Fatal("nacked")
		}
		if got := get(t, channel, queue, true).Body; !bytes.Equal(got, body) {
			t.Fatalf("a body of %d bytes came back as %d", len(body), len(got))
		}
	}
}

func TestPropertiesAndHeadersComeBack(t *testing.T) {
	_, channel, queue := start(t)
	when := time.Unix(1_700_000_000, 0)
	headers := amqp.Table{
		"bool": true, "byte": byte(200), "int8": int8(-8), "int16": int16(-1600), "int32": int32(-320_000),
		"int64": int64(-1 << 60), "float32": float32(1.5), "float64": 2.25,
		"decimal": amqp.Decimal{Scale: 2, Value: 314}, "text": "Grüße", "bytes": []byte{0, 255},
		"time": when, "none": nil, "list": []interface{}{int32(1), "two", []interface{}{int32(3)}},
		"table": amqp.Table{"nested": amqp.Table{"deep": int32(1)}},
	}
	sent := amqp.Publishing{
		Headers: headers, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent,
		Priority: 5, CorrelationId: "correlation", ReplyTo: "reply", Expiration: "60000", MessageId: "message",
		Timestamp: when, Type: "type", UserId: "guest", AppId: "app", Body: []byte("body"),
	}
	publish(t, channel, "", queue, sent)
	got := get(t, channel, queue, true)
	for key, want := range headers {
		if time, ok := want.(time.Time); ok {
			equal(t, key, got.Headers[key].(interface{ Unix() int64 }).Unix(), time.Unix())
			continue
		}
		equal(t, key, got.Headers[key], want)
	}
	equal(t, "headers", len(got.Headers), len(headers))
	equal(t, "timestamp", got.Timestamp.Unix(), when.Unix())
	back := amqp.Publishing{
		Headers: headers, ContentType: got.ContentType, ContentEncoding: got.ContentEncoding,
		DeliveryMode: got.DeliveryMode, Priority: got.Priority, CorrelationId: got.CorrelationId, ReplyTo: got.ReplyTo,
		Expiration: got.Expiration, MessageId: got.MessageId, Timestamp: when, Type: got.Type, UserId: got.UserId,
		AppId: got.AppId, Body: got.Body,
	}
	equal(t, "properties", back, sent)
}

func TestPrefetchAndMultipleAck(t *testing.T) {
	_, channel, queue := start(t)
	publishAll(t, channel, queue, "1", "2", "3", "4", "5", "6")
	check(t, channel.Qos(3, 0, false))
	deliveries := must(channel.Consume(queue, "", false, false, false, false, nil))(t)
	next(t, deliveries)
	next(t, deliveries)
	third := next(t, deliveries)
	equal(t, "left", must(channel.QueueDeclarePassive(queue, false, false, true, false, nil))(t).Messages, 3)
	check(t, third.Ack(true))
	for _, want := range []string{"4", "5", "6"} {
		equal(t, "body", string(next(t, deliveries).Body), want)
	}
}

func TestNackedMessageReturnsToItsPlace(t *testing.T) {
	_, channel, queue := start(t)
	publishAll(t, channel, queue, "1", "2", "3")
	get(t, channel, queue, false)
	check(t, get(t, channel, queue, false).Nack(true, true))
	for index, want := range []string{"1", "2", "3"} {
		delivery := get(t, channel, queue, false)
		equal(t, "body", string(delivery.Body), want)
		equal(t, "redelivered", delivery.Redelivered, index < 2)
		check(t, delivery.Reject(false))
	}
	check(t, channel.Recover(true))
	empty(t, channel, queue)
}

func TestCancelByClientAndByBroker(t *testing.T) {
	connection, channel, _ := start(t)
	queue := must(channel.QueueDeclare(name("short-lived"), false, false, false, false, nil))(t).Name
	deliveries := must(channel.Consume(queue, "own", false, false, false, false, nil))(t)
	check(t, channel.Cancel("own", false))
	if _, open := <-deliveries; open {
		t.Fatal("a delivery came from an empty queue")
	}
	told := channel.NotifyCancel(make(chan string, 1))
	must(channel.Consume(queue, "watched", false, false, false, false, nil))(t)
	must(openChannel(t, connection).QueueDelete(queue, false, false, false))(t)
	select {
	case tag := <-told:
		equal(t, "tag", tag, "watched")
	case <-time.After(patience):
		t.Fatal("the consumer was not told")
	}
}

func TestExclusiveQueueGoesWithItsConnection(t *testing.T) {
	owner, _, queue := start(t)
	if !strings.HasPrefix(queue, "amq.gen-") {
		t.Fatalf("a queue named by the broker is called %s", queue)
	}
	check(t, owner.Close())
	refused(t, connect(t), 404, fmt.Sprintf("NOT_FOUND - no queue '%s' in vhost '/'", queue),
		func(c *amqp.Channel) error {
			_, err := c.QueueDeclarePassive(queue, false, false, true, false, nil)
			return err
		})
}

func TestRouting(t *testing.T) {
	type message struct {
		key     string
		headers amqp.Table
	}
	routes := []struct {
		kind, key    string
		arguments    amqp.Table
		hits, misses []message
	}{
		{"direct", "a", nil, []message{{"a", nil}}, []message{{"b", nil}}},
		{"fanout", "", nil, []message{{"any", nil}}, nil},
		{"topic", "a.*.#", nil, []message{{"a.b", nil}, {"a.b.c.d", nil}}, []message{{"a", nil}, {"b.a", nil}}},
		{"headers", "", amqp.Table{"x-match": "all", "k": 1, "l": "x"},
			[]message{{"", amqp.Table{"k": 1, "l": "x"}}}, []message{{"", amqp.Table{"k": 1}}}},
		{"headers", "", amqp.Table{"x-match": "any", "k": 1, "l": "x"},
			[]message{{"", amqp.Table{"k": 1}}}, []message{{"", amqp.Table{"k": 2}}}},
	}
	for _, route := range routes {
		t.Run(fmt.Sprintf("%s %v", route.kind, route.arguments["x-match"]), func(t *testing.T) {
			_, channel, queue := start(t)
			exchange := name(route.kind)
			check(t, channel.ExchangeDeclare(exchange, route.kind, false, true, false, false, nil))
			check(t, channel.QueueBind(queue, route.key, exchange, false, route.arguments))
			for _, message := range append(route.hits, route.misses...) {
				publish(t, channel, exchange, message.key, amqp.Publishing{Headers: message.headers})
			}
			equal(t, "routed", must(channel.QueuePurge(queue, false))(t), len(route.hits))
		})
	}
}

func TestManyChannelsOnOneConnection(t *testing.T) {
	connection, channel, queue := start(t)
	for number := range 200 {
		publishAll(t, channel, queue, fmt.Sprint(number))
	}
	seen := map[string]bool{}
	for range 200 {
		seen[string(get(t, openChannel(t, connection), queue, true).Body)] = true
	}
	equal(t, "different bodies", len(seen), 200)
}

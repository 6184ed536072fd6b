//! The client stories through lapin, the Rust client: what an application sees.

use futures_lite::StreamExt;
use lapin::message::{BasicReturnMessage, Delivery};
use lapin::options::*;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, Error, ErrorKind, ExchangeKind,
};
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;
use warrenmq_tests::{Node, PATIENCE};

/// Runs a story against a broker of its own.
fn story<S: Future<Output = Result<(), Error>>>(tell: impl FnOnce(String) -> S) {
    let node = Node::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let told = runtime.expect("a runtime").block_on(async { timeout(PATIENCE * 2, tell(node.url())).await });
    told.expect("the story comes to its end").expect("no error but those expected");
}

async fn connect(url: &str) -> Result<Connection, Error> {
    Connection::connect(url, ConnectionProperties::default()).await
}

/// A connection, and a channel on it in confirm mode.
async fn open(url: &str) -> Result<(Connection, Channel), Error> {
    let connection = connect(url).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// An exclusive queue named by the broker.
async fn exclusive_queue(channel: &Channel) -> Result<ShortString, Error> {
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    Ok(channel.queue_declare("".into(), options, FieldTable::default()).await?.name().clone())
}

async fn publish(channel: &Channel, exchange: &str, key: &str, body: &[u8]) -> Result<Confirmation, Error> {
    let properties = BasicProperties::default();
    channel.basic_publish(exchange.into(), key.into(), Default::default(), body, properties).await?.await
}

async fn consume(channel: &Channel, queue: &ShortString, no_ack: bool) -> Result<Consumer, Error> {
    let options = BasicConsumeOptions { no_ack, ..Default::default() };
    channel.basic_consume(queue.clone(), "".into(), options, FieldTable::default()).await
}

async fn next(consumer: &mut Consumer) -> Result<Delivery, Error> {
    timeout(PATIENCE, consumer.next()).await.expect("a delivery in time").expect("the consumer goes on")
}

/// The body of the next message, taken without acknowledgement.
async fn take(channel: &Channel, queue: &ShortString) -> Result<Option<Vec<u8>>, Error> {
    let message = channel.basic_get(queue.clone(), BasicGetOptions { no_ack: true }).await?;
    Ok(message.map(|message| message.delivery.data))
}

/// The reply code and text of a refusal.
fn refusal<T>(outcome: Result<T, Error>) -> (u16, String) {
    let Err(error) = outcome else { panic!("a refusal was expected") };
    match error.kind() {
        ErrorKind::ProtocolError(error) => (error.get_id(), error.get_message().to_string()),
        other => panic!("a refusal by the broker was expected, not {other:?}"),
    }
}

#[test]
fn published_messages_are_consumed_in_order_and_gone_when_acked() {
    story(async |url| {
        let (connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        for number in 0..10_u8 {
            publish(&channel, "", queue.as_str(), &[number]).await?;
        }
        let mut consumer = consume(&channel, &queue, false).await?;
        for number in 0..10_u8 {
            let delivery = next(&mut consumer).await?;
            assert_eq!(delivery.data, [number]);
            delivery.ack(BasicAckOptions::default()).await?;
        }
        channel.close(200, "bye".into()).await?;
        let channel = connection.create_channel().await?;
        assert_eq!(take(&channel, &queue).await?, None);
        connection.close(200, "bye".into()).await
    });
}

#[test]
fn routable_and_unroutable_publishes_are_acked_and_mandatory_ones_returned() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        assert_eq!(publish(&channel, "", queue.as_str(), b"routed").await?, Confirmation::Ack(None));
        assert_eq!(publish(&channel, "", "nowhere", b"dropped").await?, Confirmation::Ack(None));
        let mandatory = BasicPublishOptions { mandatory: true, ..Default::default() };
        let properties = BasicProperties::default();
        let confirm = channel.basic_publish("".into(), "nowhere".into(), mandatory, b"back", properties).await?.await?;
        let Confirmation::Ack(Some(returned)) = confirm else { panic!("an ack with its return, not {confirm:?}") };
        let BasicReturnMessage { delivery, reply_code, reply_text, .. } = returned;
        assert_eq!((delivery.data.as_slice(), reply_code, reply_text.as_str()), (b"back".as_slice(), 312, "NO_ROUTE"));
        Ok(())
    });
}

#[test]
fn many_confirms_in_flight_all_come() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        let mut confirms = Vec::new();
        for number in 0..1000_u32 {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            let body = number.to_be_bytes();
            confirms.push(channel.basic_publish("".into(), queue.clone(), options, &body, properties).await?);
        }
        for confirm in confirms {
            assert_eq!(confirm.await?, Confirmation::Ack(None));
        }
        assert_eq!(channel.queue_purge(queue, QueuePurgeOptions::default()).await?, 1000);
        Ok(())
    });
}

#[test]
fn remote_call_is_answered_through_a_reply_queue() {
    story(async |url| {
        let (_client_connection, client) = open(&url).await?;
        let (_server_connection, server) = open(&url).await?;
        let requests =
            server.queue_declare("rpc".into(), Default::default(), FieldTable::default()).await?.name().clone();
        let replies = exclusive_queue(&client).await?;
        let (mut asked, mut answers) =
            (consume(&server, &requests, true).await?, consume(&client, &replies, true).await?);

        let question = BasicProperties::default().with_reply_to(replies.clone()).with_correlation_id("42".into());
        client.basic_publish("".into(), requests, Default::default(), b"question", question).await?.await?;
        let request = next(&mut asked).await?;
        let id = request.properties.correlation_id().clone().expect("a correlation id");
        let reply_to = request.properties.reply_to().clone().expect("a reply address");
        let answer = BasicProperties::default().with_correlation_id(id);
        server.basic_publish("".into(), reply_to, Default::default(), b"answer", answer).await?.await?;

        let reply = next(&mut answers).await?;
        assert_eq!(reply.properties.correlation_id(), &Some("42".into()));
        assert_eq!(reply.data, b"answer");
        Ok(())
    });
}

#[test]
fn get_finds_messages_and_tells_when_there_are_none() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        assert!(channel.basic_get(queue.clone(), BasicGetOptions::default()).await?.is_none());
        publish(&channel, "", queue.as_str(), b"1").await?;
        publish(&channel, "", queue.as_str(), b"2").await?;
        let first = channel.basic_get(queue.clone(), BasicGetOptions::default()).await?.expect("a message");
        assert_eq!((first.delivery.data.as_slice(), first.message_count), (b"1".as_slice(), 1));
        Ok(())
    });
}

#[test]
fn transactions_commit_and_roll_back() {
    story(async |url| {
        let connection = connect(&url).await?;
        let channel = connection.create_channel().await?;
        let onlooker = connection.create_channel().await?;
        let queue = exclusive_queue(&channel).await?;
        channel.tx_select().await?;
        publish(&channel, "", queue.as_str(), b"rolled back").await?;
        channel.tx_rollback().await?;
        publish(&channel, "", queue.as_str(), b"committed").await?;
        assert_eq!(take(&onlooker, &queue).await?, None);
        channel.tx_commit().await?;
        assert_eq!(take(&onlooker, &queue).await?.as_deref(), Some(b"committed".as_slice()));
        assert_eq!(take(&onlooker, &queue).await?, None);
        Ok(())
    });
}

#[test]
fn errors_close_the_channel_only() {
    story(async |url| {
        let (connection, channel) = open(&url).await?;
        let (_owner_connection, owner) = open(&url).await?;
        channel.queue_declare("shared".into(), Default::default(), FieldTable::default()).await?;
        let exclusive = QueueDeclareOptions { exclusive: true, ..Default::default() };
        owner.queue_declare("mine".into(), exclusive, FieldTable::default()).await?;
        let cases = [
            (
                ("missing", QueueDeclareOptions { passive: true, ..Default::default() }),
                (404, "NOT_FOUND - no queue 'missing' in vhost '/'"),
            ),
            (
                ("shared", QueueDeclareOptions { durable: true, ..Default::default() }),
                (
                    406,
                    "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'shared' in vhost '/': received 'true' but \
                     current is 'false'",
                ),
            ),
            (
                ("amq.mine", QueueDeclareOptions::default()),
                (403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"),
            ),
            (
                ("mine", exclusive),
                (
                    405,
                    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be \
                     originally declared on another connection or the exclusive property value does not match that of \
                     the original declaration.",
                ),
            ),
        ];
        for ((queue, options), (code, text)) in cases {
            let refused = connection.create_channel().await?;
            let outcome = refused.queue_declare(queue.into(), options, FieldTable::default()).await;
            assert_eq!(refusal(outcome), (code, text.to_owned()));
            assert!(connection.status().connected());
        }
        publish(&channel, "", "shared", b"still open").await?;
        Ok(())
    });
}

#[test]
fn missing_vhost_and_wrong_password_are_refused() {
    story(async |url| {
        let outcome = connect(&url.replace("%2f", "nowhere")).await;
        assert_eq!(refusal(outcome).1, "NOT_ALLOWED - vhost nowhere not found");
        assert!(connect(&url.replace("guest:guest", "guest:wrong")).await.is_err());
        Ok(())
    });
}

#[test]
fn large_and_empty_bodies_pass() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        let large: Vec<u8> = (0..20 * 1024 * 1024_u32).map(|index| (index % 251) as u8).collect();
        for body in [large, Vec::new()] {
            publish(&channel, "", queue.as_str(), &body).await?;
            assert!(take(&channel, &queue).await? == Some(body));
        }
        Ok(())
    });
}

#[test]
fn properties_and_headers_come_back() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        let mut nested = FieldTable::default();
        nested.insert("deep".into(), AMQPValue::LongInt(1));
        let list = FieldArray::from(vec![AMQPValue::LongInt(1), AMQPValue::LongString("two".into())]);
        let mut headers = FieldTable::default();
        headers.insert("bool".into(), AMQPValue::Boolean(true));
        headers.insert("int".into(), AMQPValue::LongInt(-7));
        headers.insert("long".into(), AMQPValue::LongLongInt(1 << 60));
        headers.insert("double".into(), AMQPValue::Double(2.5));
        headers.insert("text".into(), AMQPValue::LongString("Grüße".into()));
        headers.insert("list".into(), AMQPValue::FieldArray(list));
        headers.insert("table".into(), AMQPValue::FieldTable(nested));
        headers.insert("void".into(), AMQPValue::Void);
        let sent = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_headers(headers)
            .with_delivery_mode(2)
            .with_priority(5)
            .with_correlation_id("correlation".into())
            .with_expiration("60000".into())
            .with_message_id("message".into())
            .with_timestamp(1_700_000_000)
            .with_type("type".into())
            .with_user_id("guest".into())
            .with_app_id("app".into());
        channel.basic_publish("".into(), queue.clone(), Default::default(), b"", sent.clone()).await?.await?;
        let got = channel.basic_get(queue, BasicGetOptions { no_ack: true }).await?.expect("the message");
        assert_eq!(got.delivery.properties, sent);
        Ok(())
    });
}

#[test]
fn prefetch_holds_back_until_acks_come() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        for number in 0..6_u8 {
            publish(&channel, "", queue.as_str(), &[number]).await?;
        }
        channel.basic_qos(3, BasicQosOptions::default()).await?;
        let mut consumer = consume(&channel, &queue, false).await?;
        next(&mut consumer).await?;
        next(&mut consumer).await?;
        let third = next(&mut consumer).await?;
        assert!(timeout(Duration::from_millis(200), consumer.next()).await.is_err(), "no fourth before an ack");
        third.ack(BasicAckOptions { multiple: true }).await?;
        for number in 3..6_u8 {
            assert_eq!(next(&mut consumer).await?.data, [number]);
        }
        Ok(())
    });
}

#[test]
fn nacked_messages_return_to_their_place() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let queue = exclusive_queue(&channel).await?;
        for number in 0..3_u8 {
            publish(&channel, "", queue.as_str(), &[number]).await?;
        }
        let get = || channel.basic_get(queue.clone(), BasicGetOptions::default());
        get().await?.expect("the first");
        let second = get().await?.expect("the second");
        second.delivery.nack(BasicNackOptions { multiple: true, requeue: true }).await?;
        for number in 0..3_u8 {
            let again = get().await?.expect("a message");
            assert_eq!((again.delivery.data.as_slice(), again.delivery.redelivered), ([number].as_slice(), number < 2));
            again.delivery.reject(BasicRejectOptions { requeue: false }).await?;
        }
        assert!(get().await?.is_none());
        Ok(())
    });
}

#[test]
fn consumers_can_be_cancelled_by_either_side() {
    story(async |url| {
        let (connection, channel) = open(&url).await?;
        let queue = channel.queue_declare("q".into(), Default::default(), FieldTable::default()).await?.name().clone();
        let mut consumer = consume(&channel, &queue, true).await?;
        channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await?;
        assert!(timeout(PATIENCE, consumer.next()).await.expect("the stream ends").is_none());
        let mut watched = consume(&channel, &queue, true).await?;
        connection.create_channel().await?.queue_delete(queue, QueueDeleteOptions::default()).await?;
        assert!(timeout(PATIENCE, watched.next()).await.expect("the consumer is told").is_none());
        Ok(())
    });
}

#[test]
fn exchanges_route() {
    story(async |url| {
        let (_connection, channel) = open(&url).await?;
        let routes: [(ExchangeKind, &str, &[&str], &[&str]); 3] = [
            (ExchangeKind::Direct, "a", &["a"], &["b"]),
            (ExchangeKind::Fanout, "", &["any", ""], &[]),
            (ExchangeKind::Topic, "a.*.#", &["a.b", "a.b.c.d"], &["a", "b.a"]),
        ];
        for (kind, pattern, hits, misses) in routes {
            let exchange = ShortString::from(format!("{kind:?}"));
            let queue = exclusive_queue(&channel).await?;
            channel.exchange_declare(exchange.clone(), kind, Default::default(), FieldTable::default()).await?;
            let options = QueueBindOptions::default();
            channel.queue_bind(queue.clone(), exchange.clone(), pattern.into(), options, FieldTable::default()).await?;
            for key in hits.iter().chain(misses) {
                publish(&channel, exchange.as_str(), key, b"").await?;
            }
            assert_eq!(
                channel.queue_purge(queue, QueuePurgeOptions::default()).await? as usize,
                hits.len(),
                "{exchange}"
            );
        }
        Ok(())
    });
}

#[test]
fn many_channels_share_a_connection() {
    story(async |url| {
        let connection = connect(&url).await?;
        let first = connection.create_channel().await?;
        let queue = exclusive_queue(&first).await?;
        let mut channels = Vec::new();
        for number in 0..200_u8 {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            publish(&channel, "", queue.as_str(), &[number]).await?;
            channels.push(channel);
        }
        let mut seen = std::collections::BTreeSet::new();
        for channel in &channels {
            seen.insert(take(channel, &queue).await?.expect("a message for each channel"));
        }
        assert_eq!(seen.len(), 200);
        Ok(())
    });
}

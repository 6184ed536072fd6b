//! Direct reply-to, spoken over a socket.

mod client;

use amqp::methods::{AMQPClass, basic, queue};
use amqp::{FieldArray, FieldTable, Properties, PropertiesBuilder};
use client::{Client, Node, Received};

const PSEUDO_QUEUE: &str = "amq.rabbitmq.reply-to";

/// A requester that consumes replies, a replier, and the address of the requester as the replier has seen it.
async fn requester_and_replier(node: &Node) -> (Client, Client, String) {
    let (mut requester, mut replier) = (node.connect().await, node.connect().await);
    let requests = replier.declare("").await;
    replier.consume(1, &requests).await;
    requester.consume(1, PSEUDO_QUEUE).await;
    let properties = PropertiesBuilder::new().set_correlation_id(b"7").set_reply_to(PSEUDO_QUEUE.as_bytes());
    requester.publish(1, &requests, properties, b"question");
    requester.flush().await;
    let request = replier.receive().await;
    assert_eq!(request.body, b"question");
    assert_eq!(Properties::from_raw_trusted(&request.properties).correlation_id(), Some(b"7".as_slice()));
    let address = request.reply_to();
    (requester, replier, address)
}

fn closed_with(received: &Received) -> u16 {
    match &received.method {
        AMQPClass::Channel(amqp::methods::channel::AMQPMethod::Close(close)) => close.reply_code,
        other => panic!("no channel.close but {other:?}"),
    }
}

fn is_return(received: &Received) -> bool {
    matches!(&received.method, AMQPClass::Basic(basic::AMQPMethod::Return(r)) if r.reply_code == 312)
}

#[tokio::test]
async fn a_reply_reaches_the_channel_that_asked_and_is_returned_when_mandatory() {
    let node = Node::start().await;
    let (mut requester, mut replier, address) = requester_and_replier(&node).await;
    replier.publish(1, &address, PropertiesBuilder::new().set_correlation_id(b"8"), &[7; 200_000]);
    assert!(is_return(&replier.receive().await), "a reply reaches no queue");
    let reply = requester.receive().await;
    let AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver)) = &reply.method else { panic!("{reply:?}") };
    assert_eq!((reply.channel, deliver.consumer_tag.as_str(), deliver.exchange.as_str()), (1, PSEUDO_QUEUE, ""));
    assert_eq!(deliver.routing_key.as_str(), address);
    assert_eq!(reply.body, [7; 200_000]);
}

#[tokio::test]
async fn forged_addresses_are_unroutable_and_a_copied_one_gives_one_copy() {
    let node = Node::start().await;
    let (mut requester, mut replier, address) = requester_and_replier(&node).await;
    let last = if address.ends_with('A') { "B" } else { "A" };
    let variant = format!("{}{last}", &address[..address.len() - 1]);
    for forged in [
        variant.as_str(),
        &address[..address.len() - 1],
        &format!("{address}A"),
        PSEUDO_QUEUE,
        "amq.rabbitmq.reply-to.",
    ] {
        replier.publish(1, forged, PropertiesBuilder::new(), b"forged");
        assert!(is_return(&replier.receive().await), "{forged}");
    }
    let copies = [address.as_str(), &variant, &address].map(|key| amqp::AMQPValue::LongString(key.into()));
    let mut headers = FieldTable::default();
    headers.insert("CC".into(), amqp::AMQPValue::FieldArray(FieldArray::from(copies.to_vec())));
    replier.publish(1, &address, PropertiesBuilder::new().set_headers(&headers), b"one");
    assert!(is_return(&replier.receive().await));
    replier.publish(1, &address, PropertiesBuilder::new(), b"two");
    assert!(is_return(&replier.receive().await));
    assert_eq!(requester.receive().await.body, b"one");
    assert_eq!(requester.receive().await.body, b"two");
}

#[tokio::test]
async fn an_address_can_be_declared_until_its_consumer_is_cancelled() {
    let node = Node::start().await;
    let (mut requester, mut replier, address) = requester_and_replier(&node).await;
    assert_eq!(replier.declare(&address).await, address);
    let cancel = basic::Cancel { consumer_tag: PSEUDO_QUEUE.into(), nowait: false };
    requester.send(1, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
    let cancelled = requester.receive().await;
    assert!(matches!(cancelled.method, AMQPClass::Basic(basic::AMQPMethod::CancelOk(_))), "{cancelled:?}");
    replier.publish(1, &address, PropertiesBuilder::new(), b"too late");
    assert!(is_return(&replier.receive().await));
    let declare = queue::Declare { queue: address.as_str().into(), ..Default::default() };
    replier.send(1, AMQPClass::Queue(queue::AMQPMethod::Declare(declare)));
    assert_eq!(closed_with(&replier.receive().await), 404);
}

//! A broker with one queue in its head that does wrong on purpose: just enough of the protocol for `warrenmq perf`.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use amqp::methods::{AMQPClass, basic, channel, confirm, connection, queue};
use amqp::{FieldTable, FrameDecoder, FrameKind, Method, Outbox, encode};
use bytes::{Bytes, BytesMut};

/// Which publish goes wrong, counted from 0. Not the last one.
const FAULTY: usize = 42;

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A message is confirmed and forgotten.
    Drop,
    /// A message is delivered twice.
    Double,
    /// A message is delivered after the next one.
    Swap,
}

/// Listens as long as the test runs.
pub(crate) struct FakeBroker {
    pub(crate) address: String,
}

struct Shared {
    fault: Fault,
    /// Where deliveries go.
    consumer: Mutex<Option<TcpStream>>,
}

impl FakeBroker {
    pub(crate) fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let shared = Arc::new(Shared { fault, consumer: Mutex::new(None) });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Self { address }
    }
}

/// One connection, until the peer hangs up.
fn serve(mut stream: TcpStream, shared: &Shared) {
    let decoder = FrameDecoder::new(131_072);
    let mut header = [0; 8];
    stream.read_exact(&mut header).expect("a protocol header");
    let mut out = BytesMut::new();
    encode::start(&mut out, 0, 9, &[], "PLAIN", "en_US");
    stream.write_all(&out).expect("writable");
    let (mut input, mut chunk) = (Vec::new(), [0; 65_536]);
    let (mut published, mut held, mut properties) = (0, None, Vec::new());
    loop {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => input.extend_from_slice(&chunk[..bytes]),
        }
        let (mut at, mut out) = (0, BytesMut::new());
        while let Some((frame, bytes)) = decoder.decode(&input[at..]).expect("frames") {
            at += bytes;
            match frame.kind {
                FrameKind::Method => match Method::decode(frame.payload).expect("a method") {
                    Method::Publish(_) => {}
                    Method::Other(_, method) => answer(&method, frame.channel, &mut out, &stream, shared),
                    other => panic!("unexpected {other:?}"),
                },
                FrameKind::Header => properties = frame.payload[12..].to_vec(),
                FrameKind::Body => {
                    let body = Bytes::copy_from_slice(frame.payload);
                    deliver(shared, published, body, &properties, &mut held);
                    published += 1;
                    encode::ack(&mut out, frame.channel, published as u64, false);
                }
                FrameKind::Heartbeat => {}
            }
        }
        input.drain(..at);
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

fn deliver(shared: &Shared, number: usize, body: Bytes, properties: &[u8], held: &mut Option<Bytes>) {
    let mut bodies = vec![body];
    if number == FAULTY {
        match shared.fault {
            Fault::Drop => bodies.clear(),
            Fault::Double => bodies.push(bodies[0].clone()),
            Fault::Swap => *held = bodies.pop(),
        }
    } else {
        bodies.extend(held.take());
    }
    let mut outbox = Outbox::new();
    for body in &bodies {
        // Nothing is acknowledged, so tags do not matter.
        encode::deliver_method(outbox.buffer(), 1, "p", 1, false, b"\0\x01q");
        outbox.content(1, 131_072, properties, body);
    }
    let mut slices = [std::io::IoSlice::new(&[]); 16];
    let filled = outbox.io_slices(&mut slices);
    let mut consumer = shared.consumer.lock().expect("not poisoned");
    let consumer = consumer.as_mut().expect("the consumer comes before the publisher");
    for slice in &slices[..filled] {
        consumer.write_all(slice).expect("writable");
    }
}

fn answer(method: &AMQPClass, channel: u16, out: &mut BytesMut, stream: &TcpStream, shared: &Shared) {
    let reply = match method {
        AMQPClass::Connection(connection::AMQPMethod::StartOk(_)) => {
            let tune = connection::Tune { channel_max: 10, frame_max: 131_072, heartbeat: 0 };
            AMQPClass::Connection(connection::AMQPMethod::Tune(tune))
        }
        AMQPClass::Connection(connection::AMQPMethod::Open(_)) => {
            AMQPClass::Connection(connection::AMQPMethod::OpenOk(connection::OpenOk {}))
        }
        AMQPClass::Connection(connection::AMQPMethod::Close(_)) => {
            AMQPClass::Connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}))
        }
        AMQPClass::Channel(channel::AMQPMethod::Open(_)) => {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}))
        }
        AMQPClass::Confirm(_) => AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {})),
        AMQPClass::Queue(queue::AMQPMethod::Declare(declare)) => {
            let ok = queue::DeclareOk { queue: declare.queue.clone(), message_count: 0, consumer_count: 0 };
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok))
        }
        AMQPClass::Queue(queue::AMQPMethod::Delete(_)) => {
            AMQPClass::Queue(queue::AMQPMethod::DeleteOk(queue::DeleteOk { message_count: 0 }))
        }
        AMQPClass::Basic(basic::AMQPMethod::Consume(consume)) => {
            assert_eq!(consume.arguments, FieldTable::default());
            *shared.consumer.lock().expect("not poisoned") = Some(stream.try_clone().expect("a second handle"));
            let ok = basic::ConsumeOk { consumer_tag: consume.consumer_tag.clone() };
            AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(ok))
        }
        AMQPClass::Connection(connection::AMQPMethod::TuneOk(_)) => return,
        other => panic!("unexpected {other:?}"),
    };
    encode::method(out, channel, &reply);
}

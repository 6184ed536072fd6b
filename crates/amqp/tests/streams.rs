//! A connection's bytes mean the same however the network cuts them.

use amqp::{Assembler, FrameDecoder, FrameKind, Method, Outbox, Step, encode};
use bytes::Bytes;
use proptest::prelude::*;

/// What came of a stream, with bodies joined: frames may cut them anywhere.
#[derive(Debug, PartialEq)]
enum Event {
    Method(String),
    Message { size: u64, properties: Vec<u8>, body: Vec<u8> },
    Heartbeat,
    Refused(String),
}

/// Reads the stream in pieces that end at `cuts`, as a connection does: append, decode all that is whole, keep the rest.
fn read(stream: &[u8], cuts: &[usize]) -> Vec<Event> {
    let decoder = FrameDecoder::new(4096);
    let mut assembler = Assembler::new();
    let mut message: Option<(u64, Vec<u8>, Vec<u8>)> = None;
    let mut events = Vec::new();
    let mut buffer = Vec::new();
    let mut start = 0;
    for &cut in cuts.iter().chain(&[stream.len()]) {
        buffer.extend_from_slice(&stream[start..cut]);
        start = cut;
        loop {
            let (frame, consumed) = match decoder.decode(&buffer) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(exception) => {
                    events.push(Event::Refused(exception.to_string()));
                    return events;
                }
            };
            let step = match frame.kind {
                FrameKind::Heartbeat => {
                    events.push(Event::Heartbeat);
                    Ok(None)
                }
                FrameKind::Method => assembler.method().map(|()| {
                    let method = Method::decode(frame.payload);
                    if matches!(method, Ok(Method::Publish(_))) {
                        assembler.publish_started();
                    }
                    events.push(Event::Method(format!("{method:?}")));
                    None
                }),
                FrameKind::Header => assembler.header(frame.payload).map(Some),
                FrameKind::Body => assembler.body(frame.payload).map(Some),
            };
            let complete = match step {
                Ok(None) => false,
                Ok(Some(Step::Header { header, complete })) => {
                    message = Some((header.body_size, header.properties.raw().to_vec(), Vec::new()));
                    complete
                }
                Ok(Some(Step::Body { fragment, complete })) => {
                    message.as_mut().expect("a header came first").2.extend_from_slice(fragment);
                    complete
                }
                Err(exception) => {
                    events.push(Event::Refused(exception.to_string()));
                    return events;
                }
            };
            if complete {
                let (size, properties, body) = message.take().expect("a header came first");
                events.push(Event::Message { size, properties, body });
            }
            buffer.drain(..consumed);
        }
    }
    events
}

/// `basic.publish` and its content.
fn publish(outbox: &mut Outbox, frame_max: u32, body: &[u8]) {
    outbox.buffer().extend_from_slice(b"\x01\0\x01\0\0\0\x0b\0\x3c\0\x28\0\0\x01x\x01k\0\xce");
    outbox.content(1, frame_max, &[0x10, 0, 2], &Bytes::copy_from_slice(body));
}

fn bytes_of(mut outbox: Outbox) -> Vec<u8> {
    let mut stream = Vec::new();
    while !outbox.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 16];
        let filled = outbox.io_slices(&mut slices);
        let written: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.iter().copied()).collect();
        stream.extend_from_slice(&written);
        outbox.advance(written.len());
    }
    stream
}

fn sample_stream() -> Vec<u8> {
    let mut outbox = Outbox::new();
    publish(&mut outbox, 4096, b"");
    encode::heartbeat(outbox.buffer());
    publish(&mut outbox, 12, b"in frames of four");
    encode::ack(outbox.buffer(), 1, 9, true);
    publish(&mut outbox, 4096, b"x");
    bytes_of(outbox)
}

#[test]
fn stream_cut_at_every_byte_reads_the_same() {
    let stream = sample_stream();
    let whole = read(&stream, &[]);
    assert_eq!(whole.len(), 8);
    assert!(whole.contains(&Event::Message {
        size: 17,
        properties: vec![0x10, 0, 2],
        body: b"in frames of four".to_vec()
    }));
    for cut in 0..=stream.len() {
        assert_eq!(read(&stream, &[cut]), whole, "cut at {cut}");
    }
    let every_byte: Vec<usize> = (0..stream.len()).collect();
    assert_eq!(read(&stream, &every_byte), whole);
}

#[test]
fn stream_that_ends_anywhere_reads_as_a_beginning_of_the_whole() {
    let stream = sample_stream();
    let whole = read(&stream, &[]);
    for length in 0..stream.len() {
        let begun = read(&stream[..length], &[]);
        assert_eq!(begun, whole[..begun.len()], "{length} bytes");
    }
}

proptest! {
    #[test]
    fn messages_in_frames_of_any_size_arrive_whole(
        bodies in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..3000), 9..4096_u32), 0..6),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut outbox = Outbox::new();
        for (body, frame_max) in &bodies {
            publish(&mut outbox, *frame_max, body);
        }
        let stream = bytes_of(outbox);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let arrived: Vec<Vec<u8>> = read(&stream, &cuts)
            .into_iter()
            .filter_map(|event| match event {
                Event::Message { body, .. } => Some(body),
                _ => None,
            })
            .collect();
        let sent: Vec<Vec<u8>> = bodies.into_iter().map(|(body, _)| body).collect();
        prop_assert_eq!(arrived, sent);
    }

    #[test]
    fn damaged_stream_reads_the_same_however_it_is_cut(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut stream = sample_stream();
        let at = at.index(stream.len());
        stream[at] = byte;
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(read(&stream, &cuts), read(&stream, &[]));
    }
}

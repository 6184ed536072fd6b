//! A whole stream of frames on one channel, cut by the network in any way: messages, methods and refusals are those of
//! the uncut stream. The first byte says how long the pieces are.

#![no_main]

use amqp::{Assembler, FrameDecoder, FrameKind, Method, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((piece, stream)) = input.split_first() else { return };
    let cut = read(stream.chunks(usize::from(*piece) + 1));
    assert_eq!(cut, read(std::iter::once(stream)));
});

/// What comes of the pieces, as text; bodies are joined by where they belong, not by how they were cut.
fn read<'s>(pieces: impl Iterator<Item = &'s [u8]>) -> Vec<String> {
    let decoder = FrameDecoder::new(4096);
    let mut assembler = Assembler::new();
    let mut buffer = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut start = 0;
        loop {
            let (frame, consumed) = match decoder.decode(&buffer[start..]) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(exception) => {
                    events.push(exception.to_string());
                    return events;
                }
            };
            start += consumed;
            let step = match frame.kind {
                FrameKind::Heartbeat => Ok(None),
                FrameKind::Method => assembler.method().map(|()| {
                    let method = Method::decode(frame.payload);
                    if matches!(method, Ok(Method::Publish(_))) {
                        assembler.publish_started();
                    }
                    events.push(format!("{method:?}"));
                    None
                }),
                FrameKind::Header => assembler.header(frame.payload).map(Some),
                FrameKind::Body => assembler.body(frame.payload).map(Some),
            };
            match step {
                Ok(None) => {}
                Ok(Some(step)) => {
                    let (Step::Header { complete, .. } | Step::Body { complete, .. }) = step;
                    assert_eq!(complete, assembler.is_idle());
                    events.push(format!("{step:?}"));
                }
                Err(exception) => {
                    assert!(exception.whole_connection);
                    events.push(exception.to_string());
                    return events;
                }
            }
        }
        buffer.drain(..start);
    }
    events
}
